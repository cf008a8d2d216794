"""The text of the grammar metrics: sums over text workers, and a histogram whose buckets add up."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from ipc.status_board import NUM_GAUGES, StatusBoard, TextGauge
from workers.http_grammar_metrics import grammar_text
from workers.mask_stats import MASK_BOUNDS_US, MaskStats


def test_metrics_are_sums_over_text_workers() -> None:
    assert max(TextGauge) == TextGauge.FIRST_MASKS
    assert TextGauge.FIRST_MASKS + len(MASK_BOUNDS_US) < NUM_GAUGES
    board = StatusBoard.create(2)
    slots = [board.slot(0), board.slot(1)]
    for slot in slots:
        stats = MaskStats()
        for seconds in (10e-6, 25e-6, 90e-6, 1.0):
            stats.add(seconds)
        for number, count in enumerate(stats.counts):
            slot.set_gauge(TextGauge.FIRST_MASKS + number, count)
        slot.set_gauge(TextGauge.MASK_US, stats.total_us)
        slot.set_gauge(TextGauge.TOOL_REQUESTS, 3)
    slots[0].begin(2)  # a respawn: counts stay
    slots[0].set_gauge(TextGauge.TOOL_REQUESTS, 1)
    families = {family.name: family for family in text_string_to_metric_families(grammar_text(slots))}
    assert families["sparkinfer_tool_calls_constrained"].samples[0].value == 7
    samples = {(s.name, s.labels.get("le")): s.value for s in families["sparkinfer_mask_seconds"].samples}
    assert samples["sparkinfer_mask_seconds_count", None] == 8
    assert samples["sparkinfer_mask_seconds_bucket", "2.5e-05"] == 4
    assert samples["sparkinfer_mask_seconds_bucket", "0.0001"] == 6
    assert samples["sparkinfer_mask_seconds_bucket", "+Inf"] == 8
    assert abs(samples["sparkinfer_mask_seconds_sum", None] - 2.00025) < 1e-5
    slots.clear()
    board.close()
