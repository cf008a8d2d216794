"""Prometheus text of what the text workers' grammars did, from the status board. Knows counts; never grammars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from ipc.status_board import StatusSlot, TextGauge
from workers.mask_stats import MASK_BOUNDS_US

_COUNTERS = {
    "tool_calls_constrained_total": TextGauge.TOOL_REQUESTS,
    "structured_output_constrained_total": TextGauge.STRUCTURED_REQUESTS,
    'tool_calls_forced_total{step="grammar"}': TextGauge.FORCED_REQUESTS,
    "grammar_forced_tokens_total": TextGauge.FORCED_TOKENS,
}


def grammar_text(slots: Sequence[StatusSlot]) -> str:
    """slots: of all text workers; counts are sums over them and over the workers before them."""
    return "".join(_lines(slots))


def _lines(slots: Sequence[StatusSlot]) -> Iterator[str]:
    def total(gauge: int) -> int:
        return sum(slot.total(gauge) for slot in slots)

    for name, gauge in _COUNTERS.items():
        yield f"# TYPE sparkinfer_{name.partition('{')[0]} counter\nsparkinfer_{name} {total(gauge)}\n"
    counts = [total(TextGauge.FIRST_MASKS + number) for number in range(len(MASK_BOUNDS_US) + 1)]
    yield "# TYPE sparkinfer_mask_seconds histogram\n"
    bounds = [f"{bound / 1e6:g}" for bound in MASK_BOUNDS_US]
    for bound, count in zip([*bounds, "+Inf"], accumulate(counts)):
        yield f'sparkinfer_mask_seconds_bucket{{le="{bound}"}} {count}\n'
    yield f"sparkinfer_mask_seconds_sum {total(TextGauge.MASK_US) / 1e6:.6f}\n"
    yield f"sparkinfer_mask_seconds_count {sum(counts)}\n"
