"""Scheduler: each decision by example."""

from __future__ import annotations

from collections import deque

import pytest

from sparkinfer.engine.block_manager import IntegrityError
from sparkinfer.engine.sequence import SequenceStatus
from sparkinfer.request import FinishReason, RequestId
from tests.engine.scheduling import (
    EOS,
    add,
    give,
    make_scheduler,
    make_sequence,
    shape,
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
