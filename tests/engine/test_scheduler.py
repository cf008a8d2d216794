"""Scheduler: each decision by example, then everything at once as a state machine over a paged memory of token ids."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager, IntegrityError
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.request import FinishReason, RequestId
from tests.engine.scheduling import (
    EOS,
    PagedDevice,
    add,
    give,
    make_scheduler,
    make_sequence,
    shape,
    solo_output,
)


def test_a_prompt_is_computed_in_chunks_and_then_decoded():
    scheduler = make_scheduler(policy="chunked", prefill_chunk_tokens=4)
    add(scheduler, make_sequence(1, list(range(1, 11))))
    outputs = [scheduler.schedule() for _ in range(4)]
    assert [shape(output) for output in outputs] == [
        [(1, 0, 4, False)],
        [(1, 4, 4, False)],
        [(1, 8, 2, True)],
        [(1, 10, 1, True)],
    ]
    assert [output.scheduled[0].token_ids for output in outputs] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], None]
    assert [output.num_tokens for output in outputs] == [4, 4, 2, 1]


def test_decodes_come_first_and_several_prompts_share_what_is_left():
    scheduler = make_scheduler(prefill_chunk_tokens=6, max_num_batched_tokens=10)
    add(scheduler, make_sequence(1, [1, 1]))
    scheduler.schedule()
    add(scheduler, make_sequence(2, [2] * 8), make_sequence(3, [3] * 8), make_sequence(4, [4] * 8))
    assert shape(scheduler.schedule()) == [(1, 2, 1, True), (2, 0, 6, False), (3, 0, 3, False)]
    assert shape(scheduler.schedule()) == [(1, 3, 1, True), (2, 6, 2, True), (3, 3, 5, True), (4, 0, 2, False)]


def test_no_more_than_max_num_seqs_run():
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, *(make_sequence(i, [1], max_tokens=1) for i in range(3)))
    output = scheduler.schedule()
    assert [row.sequence.request_id for row in output.scheduled] == [0, 1]
    assert not scheduler.schedule().scheduled
    give(scheduler, output)
    assert [row.sequence.request_id for row in scheduler.schedule().scheduled] == [2]


def test_smaller_priority_goes_first_and_ties_go_by_arrival():
    scheduler = make_scheduler(max_num_seqs=1)
    sequences = [make_sequence(i, [1], max_tokens=1, priority=p) for i, p in enumerate([1, 0, 1, -1, 0])]
    add(scheduler, *sequences)
    order = []
    while (output := scheduler.schedule()).scheduled:
        order.append(output.scheduled[0].sequence.request_id)
        give(scheduler, output)
    assert order == [3, 1, 4, 0, 2]


def test_new_blocks_are_told_once():
    scheduler = make_scheduler(num_blocks=4, block_size=2)
    add(scheduler, make_sequence(1, [1, 2, 3]))
    tables = []
    for _ in range(4):
        row = scheduler.schedule().scheduled[0]
        tables.append((row.first_new_block, len(row.new_blocks)))
    assert tables == [(0, 2), (2, 0), (2, 1), (3, 0)]


def test_the_newest_sequence_is_preempted_and_recomputes_what_it_had():
    scheduler = make_scheduler(num_blocks=5, block_size=2)
    add(scheduler, make_sequence(1, [1, 1]), make_sequence(2, [2, 2]))
    preempted = None
    while preempted is None:
        output = scheduler.schedule()
        if output.num_preempted:
            preempted = output
        give(scheduler, output)
    newest = scheduler._waiting.head()
    assert (newest.request_id, newest.status, newest.num_preemptions) == (2, SequenceStatus.WAITING, 1)
    assert [row.sequence.request_id for row in preempted.scheduled] == [1]
    num_known = newest.num_tokens
    scheduler.abort(RequestId(1), 1.0)
    row = scheduler.schedule().scheduled[0]
    assert (row.sequence, row.start, row.num_tokens, row.samples) == (newest, 0, num_known, True)
    assert row.token_ids == [2, 2, *newest.output_token_ids]
    assert row.admitted.output_token_ids == tuple(newest.output_token_ids)


def test_a_worse_priority_is_preempted_though_it_was_admitted_first():
    scheduler = make_scheduler(num_blocks=5, block_size=2)
    add(scheduler, make_sequence(1, [1, 1], priority=1))
    give(scheduler, scheduler.schedule())
    add(scheduler, make_sequence(2, [2, 2], priority=0))
    while not (output := scheduler.schedule()).num_preempted:
        give(scheduler, output)
    assert [row.sequence.request_id for row in output.scheduled] == [2]
    assert scheduler._waiting.head().request_id == 1


def test_a_preempted_sequence_keeps_the_token_that_was_in_flight():
    scheduler = make_scheduler(num_blocks=4, block_size=2)
    add(scheduler, make_sequence(1, [1, 1, 1]), make_sequence(2, [2, 2, 2]))
    first = scheduler.schedule()
    assert len(first.scheduled) == 1  # one block per running sequence is left free
    scheduler = make_scheduler(num_blocks=6, block_size=2)
    add(scheduler, make_sequence(1, [1, 1, 1]), make_sequence(2, [2, 2, 2]))
    in_flight = deque([scheduler.schedule()])
    while True:
        output = scheduler.schedule()
        if output.num_preempted:
            break
        in_flight.append(output)
        give(scheduler, in_flight.popleft())
    newest = scheduler._waiting.head()
    known = len(newest.output_token_ids)
    scheduler.abort(RequestId(1), 1.0)
    assert newest.has_tokens_in_flight
    assert not scheduler.schedule().scheduled
    give(scheduler, in_flight.popleft())
    assert len(newest.output_token_ids) == known + 1
    assert scheduler.schedule().scheduled[0].token_ids == [2, 2, 2, *newest.output_token_ids]


def test_a_stop_token_in_flight_ends_a_preempted_sequence_where_it_waits():
    scheduler = make_scheduler(num_blocks=6, block_size=2)
    add(scheduler, make_sequence(1, [1, 1, 1]), make_sequence(2, [2, 2, 2]))
    in_flight = deque([scheduler.schedule()])
    while not (output := scheduler.schedule()).num_preempted:
        in_flight.append(output)
        give(scheduler, in_flight.popleft())
    newest = scheduler._waiting.head()
    give(scheduler, in_flight.popleft(), token=EOS)
    give(scheduler, output)
    assert newest.finish_reason == FinishReason.STOP
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.num_open_requests) == (0, 0, 0)
    scheduler.check_integrity()


def test_a_newcomer_leaves_the_running_a_block_each():
    scheduler = make_scheduler(num_blocks=8, block_size=4)
    add(scheduler, make_sequence(1, [1] * 16), make_sequence(2, [2] * 16))
    assert [row.sequence.request_id for row in scheduler.schedule().scheduled] == [1]
    assert scheduler.num_waiting == 1


def test_a_lone_sequence_may_use_the_whole_pool_and_ends_there():
    scheduler = make_scheduler(num_blocks=3, block_size=2)
    sequence = make_sequence(1, [1, 1])
    add(scheduler, sequence)
    while (output := scheduler.schedule()).scheduled:
        give(scheduler, output)
    assert sequence.finish_reason == FinishReason.LENGTH
    assert len(sequence.output_token_ids) == 4


def test_integrity_check_sees_a_stolen_block_and_a_stolen_slot():
    scheduler = make_scheduler()
    sequence = make_sequence(1, [1] * 8)
    add(scheduler, sequence)
    scheduler.schedule()
    scheduler.check_integrity()
    stolen = sequence.block_table.pop()
    with pytest.raises(IntegrityError, match="blocks owned"):
        scheduler.check_integrity()
    sequence.block_table.append(stolen)
    scheduler._placement._free_slots.append(sequence.slot)
    with pytest.raises(IntegrityError, match="slots"):
        scheduler.check_integrity()


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests, aborts and step depths over a small pool: everybody gets their solo output, exactly once."""

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.integers(1, 12),
        prefill_chunk_tokens=st.integers(1, 6),
        vocab_size=st.sampled_from([4, 40]),
        policy=st.sampled_from(["continuous", "chunked", "priority"]),
        admission=st.sampled_from(["on_demand", "reserve"]),
        admission_wait_s=st.sampled_from([0.0, 5.0, 1000.0]),
        swap_bytes=st.sampled_from([0, 3, 8, 1000]),
        bytes_per_state=st.integers(0, 2),
    )
    def start(self, num_blocks, block_size, max_num_seqs, vocab_size, swap_bytes, bytes_per_state, **limits):
        self.config = SchedulerConfig(max_num_seqs=max_num_seqs, **limits)
        self.now = 0.0
        self.capacity = num_blocks * block_size
        self.swap_space = SwapSpace(swap_bytes, 1, bytes_per_state, min_tokens=2)
        cache = CacheManager(BlockManager(num_blocks, block_size), swap_space=self.swap_space)
        self.scheduler = Scheduler(self.config, cache, max_model_len=30)
        self.device = PagedDevice(num_blocks, block_size, max_num_seqs, vocab_size, has_state=True)
        self.vocab_size = vocab_size
        self.in_flight: deque[tuple[SchedulerOutput, StepResult]] = deque()
        self.sequences: list[Sequence] = []
        self.emitted: dict[Sequence, list[int]] = {}
        self.ended: dict[Sequence, int] = {}
        self.aborted: set[int] = set()
        self.failed: set[int] = set()
        self.announced: set[int] = set()
        self.num_requests = 0

    @rule(
        prompt=st.lists(st.integers(1, 3), max_size=20),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        priority=st.integers(0, 2),
        client_id=st.integers(0, 2),
    )
    def submit(self, prompt, max_tokens, n, priority, client_id):
        choices = [make_sequence(self.num_requests, prompt, max_tokens, priority, choice) for choice in range(n)]
        for sequence in choices:
            sequence.arrived_at = self.now
            sequence.client_id = client_id
        self.num_requests += 1
        self.sequences += choices
        self.scheduler.add(choices, self.now)
        self.hear()

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds):
        self.now += seconds
        self.scheduler.expire(self.now)
        self.hear()

    @rule()
    def schedule(self):
        if len(self.in_flight) < 3:
            self.launch()

    @precondition(lambda self: self.in_flight)
    @rule()
    def update(self):
        output, result = self.in_flight.popleft()
        self.scheduler.update(output, result, 1.0)
        self.hear()

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self):
        """A step that did not run on the device is one whose results nobody may use."""
        output, _ = self.in_flight.popleft()
        self.failed.update(id(row.sequence) for row in output.scheduled if row.sequence not in self.ended)
        self.scheduler.fail(output, 1.0, 503, "out_of_memory", "No room.")
        self.hear()

    @precondition(lambda self: self.num_requests)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.integers(0, self.num_requests - 1))
        open_before = [s for s in self.sequences if s.request_id == request_id and s not in self.ended]
        self.aborted.update(map(id, open_before))
        self.scheduler.abort(RequestId(request_id), 1.0)
        self.hear()

    def launch(self) -> bool:
        output = self.scheduler.schedule()
        assert sum(row.num_tokens for row in output.scheduled) == output.num_tokens
        assert output.num_tokens <= self.config.max_num_batched_tokens
        assert not (output.num_preempted and self.config.admission == "reserve")
        self.check_prompt_tokens(output)
        if not output.scheduled:
            return False
        self.in_flight.append((output, self.device.run(output)))
        return True

    def check_prompt_tokens(self, output: SchedulerOutput) -> None:
        """No prompt gets more than a chunk beside decodes or other prompts."""
        chunks = [row.num_tokens for row in output.scheduled if row.token_ids is not None]
        assert output.num_decode_tokens == output.num_tokens - sum(chunks)
        limit = self.config.prefill_chunk_tokens
        if self.config.policy == "chunked":
            assert sum(chunks) <= limit
        elif self.config.policy == "continuous" and len(output.scheduled) > 1:
            assert max(chunks, default=0) <= limit

    def hear(self) -> None:
        """Accepted once, before the first token; nothing after the end."""
        events = self.scheduler.take_events()
        for sequence in events.queued:
            assert sequence.request_id not in self.announced
            self.announced.add(sequence.request_id)
        for sequence, token_id in zip(events.sequences, events.token_ids, strict=True):
            assert sequence not in self.ended
            assert sequence.request_id in self.announced
            self.emitted.setdefault(sequence, []).append(token_id)
        for sequence in events.finished:
            assert sequence not in self.ended
            self.ended[sequence] = sequence.finish_reason
            self.check_end(sequence)

    def check_end(self, sequence: Sequence) -> None:
        emitted = self.emitted.get(sequence, [])
        assert emitted == sequence.output_token_ids
        limit = min(30, self.capacity) - sequence.num_prompt_tokens
        if sequence.num_prompt_tokens == 0 or limit <= 0:
            assert sequence.finish_reason == FinishReason.ERROR
            return
        solo = solo_output(sequence.prompt_token_ids, min(sequence.sampling.max_tokens, limit), self.vocab_size)
        if sequence.code == "no_capacity":
            assert not emitted
            assert sequence.status_code == 429
            assert self.now - sequence.arrived_at >= self.config.admission_wait_s
        elif id(sequence) in self.aborted | self.failed:
            assert sequence.finish_reason == (
                FinishReason.ABORT if id(sequence) in self.aborted else FinishReason.ERROR
            )
            assert emitted == solo[: len(emitted)]
        else:
            assert emitted == solo
            full = len(solo) == min(sequence.sampling.max_tokens, limit)
            assert sequence.finish_reason == (FinishReason.LENGTH if full else FinishReason.STOP)

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.scheduler.num_running <= self.config.max_num_seqs
            assert len(self.ended) + self.scheduler.num_running + self.scheduler.num_waiting == len(self.sequences)

    def teardown(self):
        """Everything comes to an end in a bounded number of steps, one in flight at a time or two."""
        if not hasattr(self, "scheduler"):
            return
        work = sum(s.num_prompt_tokens + s.sampling.max_tokens for s in self.sequences if s not in self.ended)
        for _ in range(20 + 20 * work):
            launched = self.launch()
            if self.in_flight and (len(self.in_flight) > self.num_requests % 2 or not launched):
                self.update()
            if len(self.ended) == len(self.sequences) and not self.in_flight:
                break
        assert len(self.ended) == len(self.sequences)
        assert not self.in_flight
        assert self.scheduler._cache.num_free_blocks == self.scheduler._cache.num_blocks
        assert self.swap_space.num_free_bytes == self.swap_space._num_bytes
        assert set(self.device.swapped) == set(self.swap_space._drops)
        self.nothing_is_lost()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
