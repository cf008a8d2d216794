"""Admission: who may wait, how long, what is promised to those that start, and what their clients hear when."""

from __future__ import annotations

import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.deadlines import ANNOUNCE_AFTER_S
from sparkinfer.engine.sequence import SequenceStatus
from sparkinfer.request import FinishReason, RequestId
from tests.engine.scheduling import add, give, make_scheduler, make_sequence


def step(scheduler, now: float):
    """As the engine does it: deadlines, then a step, then its result."""
    scheduler.expire(now)
    output = scheduler.schedule()
    give(scheduler, output)
    return output


class Tokens(list):
    """A list that can be seen to go."""


def codes(sequences) -> list[int]:
    return [sequence.status_code for sequence in sequences]


@pytest.mark.parametrize("limits", [{"max_num_seqs": 1}, {"num_blocks": 3}])
def test_a_wait_ends_with_429_and_everything_free(limits):
    scheduler = make_scheduler(admission_wait_s=5.0, **limits)
    running, waiting = make_sequence(1, [1] * 4), make_sequence(2, [1] * 8)
    add(scheduler, running, waiting)
    step(scheduler, 0.0)
    step(scheduler, 4.9)
    assert waiting.status == SequenceStatus.WAITING
    step(scheduler, 5.0)
    assert (waiting.finish_reason, waiting.status_code, waiting.code) == (FinishReason.ERROR, 429, "no_capacity")
    assert (scheduler.num_admission_waits, scheduler.num_admission_wait_timeouts) == (1, 1)
    scheduler.check_integrity()


@pytest.mark.parametrize("how", ["runs", "waits"])
def test_nothing_is_held_of_what_has_ended_while_one_goes_on(how: str) -> None:
    """A stream or a wait of minutes is the oldest of thousands that came and went."""
    scheduler = make_scheduler(num_blocks=40, request_timeout_s=1000.0, max_num_seqs=2 if how == "runs" else 1)
    oldest = make_sequence(0, [1] * 4)
    add(scheduler, oldest)
    step(scheduler, 0.0)
    if how == "waits":
        add(scheduler, make_sequence(1, [1] * 4, priority=0))
    others = []
    for number in range(2, 22):
        prompt = Tokens([1] * 4)
        others.append(weakref.ref(prompt))
        add(scheduler, make_sequence(number, prompt, max_tokens=1, priority=number % 2))
        del prompt
        step(scheduler, 1.0)
        scheduler.abort(RequestId(number), 1.0)
    step(scheduler, 1.0)
    scheduler.take_events()
    assert oldest.finish_reason is None
    assert [other() for other in others] == [None] * len(others)


def test_no_wait_at_all_refuses_what_cannot_start_now():
    scheduler = make_scheduler(admission_wait_s=0.0, max_num_seqs=2)
    sequences = [make_sequence(i, [1] * 4) for i in range(4)]
    add(scheduler, *sequences)
    step(scheduler, 0.0)
    assert codes(sequences) == [0, 0, 0, 0]
    step(scheduler, 0.0)
    assert codes(sequences) == [0, 0, 429, 429]
    assert [sequence.request_id for sequence in scheduler.take_events().queued] == [0, 1]
    scheduler.abort(RequestId(0), 0.0)
    late = make_sequence(5, [1] * 4)
    add(scheduler, late)
    step(scheduler, 0.0)
    step(scheduler, 0.0)
    assert late.status == SequenceStatus.RUNNING


def test_no_wait_at_all_is_about_room_not_about_a_busy_step():
    scheduler = make_scheduler(admission_wait_s=0.0, max_num_batched_tokens=4, prefill_chunk_tokens=4)
    sequences = [make_sequence(i, [1] * 12) for i in range(2)]
    add(scheduler, *sequences)
    for _ in range(4):
        step(scheduler, 0.0)
    assert codes(sequences) == [0, 0]
    assert sequences[1].status == SequenceStatus.RUNNING


def test_depth_and_waiting_are_counted_in_requests():
    """A request waits as long as none of its choices runs, and is one request however many it has."""
    scheduler = make_scheduler(max_num_seqs=2, max_queue_depth=3)
    requests = [[make_sequence(i, [1] * 4, choice=choice) for choice in range(n)] for i, n in enumerate([1, 3, 2])]
    for choices in requests:
        scheduler.add(choices, 0.0)
    assert (scheduler.open_requests.num_waiting, scheduler.num_waiting) == (3, 6)
    step(scheduler, 0.0)  # the first request and one choice of the second
    assert (scheduler.num_open_requests, scheduler.open_requests.num_waiting, scheduler.num_waiting) == (3, 1, 4)
    refused = make_sequence(9, [1] * 4)
    add(scheduler, refused)
    assert (refused.status_code, refused.code) == (429, "queue_full")
    scheduler.abort(RequestId(1), 0.0, choice=0)  # nobody of the second request runs now
    assert scheduler.open_requests.num_waiting == 2
    scheduler.check_integrity()
    for request_id in range(3):
        scheduler.abort(RequestId(request_id), 0.0)
    assert (scheduler.num_open_requests, scheduler.open_requests.num_waiting) == (0, 0)
    scheduler.check_integrity()


def test_a_request_that_has_started_is_not_refused_for_its_other_choices():
    scheduler = make_scheduler(admission_wait_s=1.0, max_num_seqs=1)
    choices = [make_sequence(1, [1] * 4, max_tokens=3, choice=choice) for choice in range(2)]
    scheduler.add(choices, 0.0)
    for now in range(10):
        step(scheduler, float(now))
    assert [choice.finish_reason for choice in choices] == [FinishReason.LENGTH] * 2


def test_what_was_preempted_is_not_refused():
    scheduler = make_scheduler(num_blocks=5, block_size=2, admission_wait_s=1.0)
    sequences = [make_sequence(1, [1, 1], max_tokens=8), make_sequence(2, [2, 2], max_tokens=8)]
    add(scheduler, *sequences)
    for now in range(30):
        step(scheduler, float(now))
    assert scheduler.num_preemptions
    assert codes(sequences) == [0, 0]


def test_a_deadline_ends_a_wait_first():
    scheduler = make_scheduler(max_num_seqs=1, admission_wait_s=300.0, request_timeout_s=2.0)
    sequences = [make_sequence(i, [1] * 4) for i in range(2)]
    add(scheduler, *sequences)
    step(scheduler, 0.0)
    step(scheduler, 2.0)
    assert codes(sequences) == [504, 504]
    assert scheduler.num_open_requests == 0
    scheduler.check_integrity()


def test_the_client_hears_of_a_request_when_it_starts_or_has_waited_a_while():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, *(make_sequence(i, [1] * 4, max_tokens=20) for i in range(2)))
    assert not scheduler.take_events().queued
    step(scheduler, 0.0)
    assert [sequence.request_id for sequence in scheduler.take_events().queued] == [0]
    step(scheduler, ANNOUNCE_AFTER_S - 1)
    assert not scheduler.take_events().queued
    step(scheduler, ANNOUNCE_AFTER_S)
    assert [sequence.request_id for sequence in scheduler.take_events().queued] == [1]
    scheduler.abort(RequestId(0), 0.0)
    step(scheduler, ANNOUNCE_AFTER_S)
    assert not scheduler.take_events().queued


def test_the_queue_is_full_before_anything_is_allocated():
    scheduler = make_scheduler(max_queue_depth=1)
    add(scheduler, make_sequence(1, [1] * 4))
    step(scheduler, 0.0)
    free = scheduler.num_free_blocks
    refused = make_sequence(2, [1] * 4)
    add(scheduler, refused)
    assert (refused.status_code, refused.code, scheduler.num_free_blocks) == (429, "queue_full", free)


def test_time_to_first_token_under_overload_follows_the_queue():
    scheduler = make_scheduler(max_num_seqs=2, num_blocks=64)
    sequences = [make_sequence(i, [1] * 4, max_tokens=3) for i in range(12)]
    add(scheduler, *sequences)
    first_token_step = {}
    for number in range(40):
        output = scheduler.schedule()
        for row in output.scheduled:
            first_token_step.setdefault(row.sequence.request_id, number)
        give(scheduler, output)
    assert [first_token_step[i] for i in range(12)] == sorted(3 * (i // 2) for i in range(12))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 24), st.integers(1, 4), st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_what_is_reserved_is_never_preempted(num_blocks, block_size, max_num_seqs, requests, seed):
    scheduler = make_scheduler(num_blocks, block_size, max_num_seqs=max_num_seqs, admission="reserve")
    rng = random.Random(seed)
    sequences = [make_sequence(i, [1] * prompt, output) for i, (prompt, output) in enumerate(requests)]
    add(scheduler, *sequences)
    for _ in range(len(requests) * 25):
        output = scheduler.schedule()
        assert not output.num_preempted
        scheduler.check_integrity()
        give(scheduler, output, rng.choice([0, 9, 9, 9]))
    assert scheduler.num_open_requests == 0
    assert scheduler.num_free_blocks == num_blocks


def test_a_reservation_counts_the_whole_answer():
    scheduler = make_scheduler(num_blocks=8, block_size=4, admission="reserve")
    add(scheduler, make_sequence(1, [1] * 4, max_tokens=13), make_sequence(2, [1] * 4, max_tokens=17))
    assert [row.sequence.request_id for row in scheduler.schedule().scheduled] == [1]
    scheduler.check_integrity()
    add(scheduler, make_sequence(3, [1] * 4, max_tokens=13))
    scheduler.abort(RequestId(2), 0.0)
    assert [row.sequence.request_id for row in scheduler.schedule().scheduled] == [1, 3]
