"""Cancelling at every stage: one end, no token after it, everything free at once, and a second time changes nothing."""

from __future__ import annotations

from collections import deque

import pytest

from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.request import FinishReason, RequestId
from tests.engine.scheduling import PagedDevice, add, make_scheduler, make_sequence, solo_output

STAGES = {
    "queued": lambda s: s.status == SequenceStatus.WAITING and not s.is_started,
    "prefilling": lambda s: s.status == SequenceStatus.RUNNING and 0 < s.num_computed_tokens < s.num_prompt_tokens,
    "first token in flight": lambda s: s.status == SequenceStatus.RUNNING and s.num_sampled_tokens == 1,
    "decoding": lambda s: s.status == SequenceStatus.RUNNING and len(s.output_token_ids) >= 2,
    "preempted": lambda s: s.status == SequenceStatus.WAITING and s.num_preemptions and not s.num_swapped_tokens,
    "swapped out": lambda s: s.status == SequenceStatus.WAITING and s.num_swapped_tokens,
    "back again": lambda s: s.status == SequenceStatus.RUNNING and s.num_preemptions,
}


class Run:
    """Three requests over a pool for two, up to two steps in flight; sequence 3 comes last and is preempted first."""

    def __init__(self, swap_bytes: int) -> None:
        self.space = SwapSpace(swap_bytes, 1, 1)
        self.scheduler = make_scheduler(11, 2, 30, self.space, max_num_batched_tokens=6, prefill_chunk_tokens=3)
        self.device = PagedDevice(11, 2, 64, vocab_size=1000, has_state=True)
        self.in_flight: deque = deque()
        self.sequences = [make_sequence(i, [i] * 5, max_tokens=12) for i in (1, 2, 3)]
        self.ended: list[Sequence] = []
        add(self.scheduler, *self.sequences)

    def step(self) -> None:
        output = self.scheduler.schedule()
        if output.scheduled:
            self.in_flight.append((output, self.device.run(output)))
        if len(self.in_flight) > (1 if output.scheduled else 0):
            self.scheduler.update(*self.in_flight.popleft(), 1.0)
        self.hear()

    def hear(self) -> None:
        events = self.scheduler.take_events()
        assert not set(events.sequences) & set(self.ended)
        self.ended += events.finished


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("by_choice", [True, False])
def test_a_request_is_cancelled(stage, by_choice):
    run = Run(swap_bytes=0 if stage == "preempted" else 1000)
    last = run.sequences[2]
    while not STAGES[stage](last):
        run.step()
        assert not last.finish_reason, f"never {stage}"
    free = run.scheduler.num_free_blocks + len(last.block_table)
    for _ in range(2):
        run.scheduler.abort(RequestId(3), 1.0, choice=0 if by_choice else -1)
        run.hear()
        run.scheduler.check_integrity()
        assert run.ended.count(last) == 1
        assert last.finish_reason == FinishReason.ABORT
        assert (run.scheduler.num_free_blocks, last.block_table) == (free, [])
    num_tokens = len(last.output_token_ids)
    while run.scheduler.num_open_requests or run.in_flight:
        run.step()
    assert run.ended.count(last) == 1
    assert len(last.output_token_ids) == num_tokens
    for other in run.sequences[:2]:
        assert other.output_token_ids == solo_output(other.prompt_token_ids, 12, 1000)
    run.scheduler.abort(RequestId(1), 1.0)
    run.scheduler.abort(RequestId(99), 1.0)
    run.hear()
    assert len(run.ended) == 3
    assert (run.scheduler.num_free_blocks, run.space.num_free_bytes) == (11, run.space._num_bytes)
