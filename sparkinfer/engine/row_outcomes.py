"""Rows of a step that got no token: for good, or because their mask was late. Knows results of steps; never queues."""

from __future__ import annotations

from collections.abc import Iterator

from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput, StepResult
from sparkinfer.errors import RequestError

NAN_LOGITS = RequestError(500, "The model's output was not a number.", code="nan_logits")
EMPTY_MASK = RequestError(500, "The grammar allows no token here.", code="empty_mask")


def row_errors(output: SchedulerOutput, result: StepResult) -> Iterator[tuple[ScheduledSequence, RequestError]]:
    """Rows that have no token and never will."""
    rows = output.sampling_rows
    yield from ((rows[number], NAN_LOGITS) for number in result.nan_rows)
    yield from ((rows[number], EMPTY_MASK) for number in result.empty_mask_rows)


def mark_late(output: SchedulerOutput, result: StepResult) -> None:
    """Sequences whose mask was late have computed their token, but not sampled it."""
    rows = output.sampling_rows
    for number in result.late_rows:
        sequence = rows[number].sequence
        sequence.num_sampled_tokens -= 1
        sequence.is_late = True
