"""Fair share between clients: least served first, nobody starves, no credit for idleness."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.fair_share import FairShare
from tests.engine.scheduling import EOS, add, give, make_scheduler, make_sequence


def client(request_id: int, client_id: int, num_prompt_tokens: int = 8, **how):
    sequence = make_sequence(request_id, [1] * num_prompt_tokens, **how)
    sequence.client_id = client_id
    return sequence


def start_order(scheduler, sequences) -> list[int]:
    """Client ids in the order in which their sequences start, one at a time."""
    order = []
    while len(order) < len(sequences):
        output = scheduler.schedule()
        order += [row.sequence.client_id for row in output.scheduled if row.admitted is not None]
        give(scheduler, output)
    return order


def test_a_burst_of_one_client_does_not_hold_up_another():
    scheduler = make_scheduler(max_num_seqs=1)
    sequences = [client(i, client_id=7, max_tokens=1) for i in range(6)] + [
        client(10 + i, client_id=8, max_tokens=1) for i in range(3)
    ]
    add(scheduler, *sequences)
    assert start_order(scheduler, sequences) == [7, 8, 7, 8, 7, 8, 7, 7, 7]


def test_long_requests_cost_their_client_more():
    scheduler = make_scheduler(max_num_seqs=1, num_blocks=64)
    sequences = [client(i, client_id=7, num_prompt_tokens=32, max_tokens=1) for i in range(3)] + [
        client(10 + i, client_id=8, num_prompt_tokens=8, max_tokens=1) for i in range(8)
    ]
    add(scheduler, *sequences)
    assert start_order(scheduler, sequences) == [7, 8, 8, 8, 8, 7, 8, 8, 8, 8, 7]


def test_output_tokens_count_too():
    scheduler = make_scheduler(max_num_seqs=1, num_blocks=64)
    sequences = [client(0, 7, 4, max_tokens=13), client(1, 7, 4, max_tokens=1)] + [
        client(10 + i, client_id=8, num_prompt_tokens=4, max_tokens=1) for i in range(6)
    ]
    add(scheduler, *sequences)
    assert start_order(scheduler, sequences) == [7, 8, 8, 8, 8, 7, 8, 8]


def test_within_a_client_the_first_is_first_and_priority_comes_before_fairness():
    scheduler = make_scheduler(max_num_seqs=1)
    sequences = [client(0, 7, max_tokens=1), client(1, 7, max_tokens=1), client(2, 8, max_tokens=1, priority=1)]
    add(scheduler, *sequences)
    seen = []
    while len(seen) < 3:
        output = scheduler.schedule()
        seen += [row.sequence.request_id for row in output.scheduled]
        give(scheduler, output)
    assert seen == [0, 1, 2]


def test_idleness_earns_no_credit():
    fair_share = FairShare()
    fair_share.enter(1)
    fair_share.charge(1, 1000)
    fair_share.enter(2)
    assert fair_share.served(2) == 1000
    fair_share.charge(2, 10)
    fair_share.leave(2)
    fair_share.charge(1, 500)
    fair_share.enter(2)
    assert fair_share.served(2) == 1500
    fair_share.leave(1)
    fair_share.enter(1)
    assert fair_share.served(1) == 1500


def test_what_was_preempted_comes_back_before_newcomers_of_other_clients():
    scheduler = make_scheduler(num_blocks=5, block_size=2)
    add(scheduler, client(1, 7, 2), client(2, 7, 2))
    while not (output := scheduler.schedule()).num_preempted:
        give(scheduler, output)
    give(scheduler, output)
    add(scheduler, client(3, 8, 2))
    scheduler.abort(1, 1.0)
    output = scheduler.schedule()
    assert [row.sequence.request_id for row in output.scheduled] == [2, 3]
    assert output.scheduled[0].admitted is not None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=40),
    st.integers(1, 3),
)
def test_nobody_is_passed_over_for_long(requests, max_num_seqs):
    """While a client waits, no other gets ahead of it by more than what runs at once, and everybody is served."""
    largest = 40 + 2 * 4
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=max_num_seqs)
    sequences = [client(i, c, prompt, max_tokens=output) for i, (c, prompt, output) in enumerate(requests)]
    add(scheduler, *sequences)
    served: Counter[int] = Counter()
    waiting = Counter(sequence.client_id for sequence in sequences)
    for _ in range(len(requests) * 25):
        output = scheduler.schedule()
        for row in output.scheduled:
            if row.admitted is not None:
                waiting[row.sequence.client_id] -= 1
            served[row.sequence.client_id] += row.num_tokens
        starved = [c for c, num in waiting.items() if num]
        for c in starved:
            assert max(served.values()) - served[c] <= (max_num_seqs + 1) * largest
        give(scheduler, output, EOS if sum(served.values()) % 7 == 0 else 9)
    assert not scheduler.num_open_requests


def test_under_overload_first_tokens_follow_the_queue():
    """One client, four slots, requests arriving twice as fast as they are served: nobody waits longer than the queue.

    The wait grows by what each request takes, and a first token never comes before an earlier arrival's.
    """
    num_slots, num_output_tokens, num_requests = 4, 8, 60
    scheduler = make_scheduler(max_num_seqs=num_slots, num_blocks=64)
    sequences, arrived, first = [], [], {}
    step = 0
    while len(first) < num_requests:
        if step % (num_output_tokens // num_slots // 2) == 0 and len(sequences) < num_requests:
            sequences.append(client(len(sequences), client_id=7, max_tokens=num_output_tokens))
            arrived.append(step)
            add(scheduler, sequences[-1])
        give(scheduler, scheduler.schedule())
        for number, sequence in enumerate(sequences):
            if sequence.output_token_ids:
                first.setdefault(number, step)
        step += 1
    order = [first[number] for number in range(num_requests)]
    assert order == sorted(order)
    waits = [first[number] - arrived[number] for number in range(num_requests)]
    service = num_output_tokens / num_slots
    for number, wait in enumerate(waits):
        num_before = sum(at > arrived[number] for at in order[:number])  # in the queue when it arrived
        assert wait <= (num_before + 1) * service + num_output_tokens
    assert waits[-1] >= num_requests / 2 * service / 2  # the queue was long indeed
