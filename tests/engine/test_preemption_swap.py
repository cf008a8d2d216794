"""Preemption: by swap or by computing again, nobody's output changes, host memory is bounded and comes back."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler_output import StepResult, SwapIn, SwapOut
from sparkinfer.engine.sequence import SequenceStatus
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.engine.swap_space import MIN_SWAP_TOKENS, SwapSpace
from sparkinfer.engine.swap_store import SwapStore
from sparkinfer.request import FinishReason, RequestId
from tests.engine.hash_model import CPU, REQUESTS, Rig, solo
from tests.engine.scheduling import EOS, PagedDevice, add, give, make_scheduler, make_sequence, solo_output
from tests.engine.test_hybrid_model import CHECKPOINT

BIG = 1 << 30


def run_until_preempted(scheduler, device):
    """Everything stays in step with the device; returns the step that preempted."""
    while True:
        output = scheduler.schedule()
        scheduler.update(output, device.run(output), 1.0)
        if output.num_preempted:
            return output


def two_sequences(swap_space: SwapSpace, num_blocks: int = 6):
    scheduler = make_scheduler(num_blocks, 2, swap_space=swap_space)
    device = PagedDevice(num_blocks, 2, 64, vocab_size=1000, has_state=True)
    first, second = make_sequence(1, [1, 1, 1]), make_sequence(2, [2, 2, 2])
    add(scheduler, first, second)
    return scheduler, device, first, second


def finish(scheduler, device) -> None:
    while scheduler.num_open_requests:
        output = scheduler.schedule()
        scheduler.update(output, device.run(output), 1.0)
        scheduler.check_integrity()


def test_a_swapped_sequence_goes_on_where_it_was():
    space = SwapSpace(BIG, 1, 1)
    scheduler, device, _, second = two_sequences(space)
    output = run_until_preempted(scheduler, device)
    order = output.swap_outs[0]
    num_known = second.num_tokens
    assert (second.status, second.num_swapped_tokens, order.sequence) == (SequenceStatus.WAITING, num_known - 1, second)
    assert len(order.blocks) == -(-(num_known - 1) // 2)
    assert space.num_free_bytes == BIG - len(order.blocks) - 1
    scheduler.abort(RequestId(1), 1.0)
    output = scheduler.schedule()
    row = output.scheduled[0]
    assert (row.start, row.num_tokens, row.token_ids) == (num_known - 1, 1, [second.output_token_ids[-1]])
    assert [order.swap_id for order in output.swap_ins] == [order.swap_id]
    assert (space.num_free_bytes, second.num_swapped_tokens) == (BIG, 0)
    scheduler.update(output, device.run(output), 1.0)
    finish(scheduler, device)
    assert second.output_token_ids == solo_output([2, 2, 2], second.max_output_tokens, 1000)
    assert not device.swapped


@pytest.mark.parametrize("space", [SwapSpace(0, 1, 1), SwapSpace(3, 1, 1), SwapSpace(BIG, 1, 0)])
def test_without_room_or_worth_it_is_computed_again(space):
    scheduler, device, _, second = two_sequences(space)
    output = run_until_preempted(scheduler, device)
    assert (output.swap_outs, second.num_swapped_tokens, second.num_computed_tokens) == ([], 0, 0)
    finish(scheduler, device)
    assert second.output_token_ids == solo_output([2, 2, 2], second.max_output_tokens, 1000)


def test_keys_and_values_alone_are_worth_it_from_some_length_on():
    space = SwapSpace(BIG, 1, 0)
    scheduler = make_scheduler(num_blocks=2 * MIN_SWAP_TOKENS // 4 + 4, swap_space=space)
    long, longer = make_sequence(1, [1] * MIN_SWAP_TOKENS), make_sequence(2, [2] * MIN_SWAP_TOKENS)
    add(scheduler, long, longer)
    while not (output := scheduler.schedule()).num_preempted:
        give(scheduler, output)
    assert output.swap_outs[0].sequence is longer


@pytest.mark.parametrize("how", ["abort", "deadline", "stop token in flight"])
def test_what_ends_while_it_is_out_leaves_nothing(how):
    space = SwapSpace(BIG, 1, 1)
    scheduler = make_scheduler(8, 2, swap_space=space, request_timeout_s=10.0)
    device = PagedDevice(8, 2, 64, vocab_size=1000, has_state=True)
    first, second = make_sequence(1, [1, 1, 1]), make_sequence(2, [2, 2, 2])
    add(scheduler, first, second)
    in_flight = deque([scheduler.schedule()])
    while not (output := scheduler.schedule()).num_preempted:
        in_flight.append(output)
        scheduler.update(in_flight[0], device.run(in_flight.popleft()), 1.0)
    assert space.num_free_bytes < BIG
    if how == "abort":
        scheduler.abort(RequestId(2), 1.0)
        scheduler.abort(RequestId(2), 1.0)
    elif how == "deadline":
        scheduler.expire(10.0)
    result = device.run(in_flight[0])
    if how == "stop token in flight":
        result = StepResult([EOS] * len(result.token_ids))
    scheduler.update(in_flight.popleft(), result, 1.0)
    scheduler.update(output, device.run(output), 1.0)
    assert second.finish_reason is not None
    assert (space.num_free_bytes, second.num_swapped_tokens) == (BIG, 0)
    add(scheduler, make_sequence(3, [3]))
    output = scheduler.schedule()
    assert len(output.swap_drops) == 1
    device.run(output)
    assert not device.swapped
    scheduler.check_integrity()


def test_a_failed_step_takes_no_copy_that_may_be_missing():
    space = SwapSpace(BIG, 1, 1)
    scheduler, device, first, second = two_sequences(space)
    output = run_until_preempted(scheduler, device)
    scheduler.fail(output, 1.0, 503, "out_of_memory", "No room.")
    assert first.finish_reason == FinishReason.ERROR
    assert (second.status, second.num_swapped_tokens, space.num_free_bytes) == (SequenceStatus.WAITING, 0, BIG)
    finish(scheduler, device)
    assert second.output_token_ids == solo_output([2, 2, 2], second.max_output_tokens, 1000)
    assert not device.swapped


def test_a_sequence_told_to_come_back_and_put_out_again_in_one_step_stays_out():
    space = SwapSpace(BIG, 1, 1)
    sequence = make_sequence(1, [1] * 4)
    sequence.block_table, sequence.num_computed_tokens = [3, 4], 4
    assert space.try_swap_out(sequence, 2)
    space.swap_in(sequence, 2)
    assert space.try_swap_out(sequence, 2)
    assert (space.num_swap_outs, space._ins) == (1, [])
    space.drop(sequence)
    assert space.num_free_bytes == BIG
    assert (space._outs, space._drops) == ([], [])


@settings(max_examples=100, deadline=None)
@given(
    st.integers(4, 14), st.integers(1, 3), st.integers(2, 5), st.integers(0, 3),
    st.sampled_from([0, 4, 9, BIG]), st.integers(0, 2), st.sampled_from(["continuous", "chunked", "priority"]),
    st.lists(st.tuples(st.integers(1, 10), st.integers(4, 20), st.integers(0, 1)), min_size=3, max_size=10),
    st.integers(1, 4), st.sampled_from([None, None, 0, 2, 20]),
)
def test_outputs_are_those_of_sequences_that_run_alone(
    num_blocks, block_size, max_num_seqs, depth, swap_bytes, bytes_per_state, policy, requests, every, num_snapshots
):
    """Requests arrive every few steps at a pool that is too small, with up to three steps in flight."""
    space = SwapSpace(swap_bytes, 1, bytes_per_state, min_tokens=1)
    scheduler = make_scheduler(
        num_blocks, block_size, 30, space, num_snapshots, max_num_seqs=max_num_seqs, policy=policy
    )
    device = PagedDevice(num_blocks, block_size, max_num_seqs, vocab_size=30, has_state=True)
    sequences = [make_sequence(i, [i % 2 + 1] * p, out, priority) for i, (p, out, priority) in enumerate(requests)]
    arriving = deque(sequences)
    in_flight: deque = deque()
    for number in range(100_000):
        if arriving and number % every == 0:
            add(scheduler, arriving.popleft())
        output = scheduler.schedule()
        scheduler.check_integrity()
        if output.scheduled:
            in_flight.append((output, device.run(output)))
        if in_flight and (len(in_flight) > depth or not output.scheduled):
            scheduler.update(*in_flight.popleft(), 1.0)
        if not arriving and not scheduler.num_open_requests and not in_flight:
            break
    assert scheduler.num_swap_outs <= scheduler.num_preemptions
    assert space.num_free_bytes == swap_bytes
    for sequence in sequences:
        if sequence.finish_reason != FinishReason.ERROR:
            assert sequence.output_token_ids == solo_output(sequence.prompt_token_ids, sequence.max_output_tokens, 30)


@pytest.fixture(scope="module")
def solo_results():
    return solo(REQUESTS)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("bytes_per_state", "swap_bytes"), [(1, BIG), (1, 30), (0, BIG)])
def test_sampled_tokens_survive_the_way_through_host_memory(solo_results, overlap, bytes_per_state, swap_bytes):
    space = SwapSpace(swap_bytes, 1, bytes_per_state, min_tokens=8)
    with Rig(num_blocks=20, overlap=overlap, swap_space=space, prefill_chunk_tokens=7) as rig:
        sink = rig.run(REQUESTS)
        assert rig.scheduler.num_swap_outs > 0
        for i, (tokens, logprobs) in enumerate(solo_results):
            assert sink.tokens.get((i, 0), []) == tokens
            assert sink.logprobs.get((i, 0), []) == logprobs
        assert space.num_free_bytes == swap_bytes
        assert rig.runner._copies._swap_store.num_entries == len(space._drops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_copies_carry_keys_values_scales_and_state(dtype):
    hparams = HParams.from_gguf(GGUFFile.open(CHECKPOINT))
    kv_cache, state_pool = KVCache(hparams, 6, 4, dtype, CPU), StatePool(hparams, 3, CPU)
    for pool in (*kv_cache.pools, *state_pool.pools):
        pool.copy_(torch.randint(-100, 100, pool.shape))
    store = SwapStore(kv_cache, state_pool)
    before = [pool.clone() for pool in kv_cache.pools], [pool.clone() for pool in state_pool.pools]
    sequence = make_sequence(1, [1])
    store.swap_out([SwapOut(sequence, 0, 1, (4, 2)), SwapOut(sequence, 1, 2, (0,))])
    for pool in (*kv_cache.pools, *state_pool.pools):
        pool.zero_()
    store.swap_in([SwapIn(sequence, 0, 0, (1, 5))])
    store.drop([1, 1])
    assert store.num_entries == 0
    for pool, old in zip(kv_cache.pools, before[0]):
        assert torch.equal(pool[4:8], old[16:20])
        assert torch.equal(pool[20:24], old[8:12])
        assert not pool[:4].any()
    for pool, old in zip(state_pool.pools, before[1]):
        assert torch.equal(pool[:, 0], old[:, 1])
        assert not pool[:, 1:].any()
