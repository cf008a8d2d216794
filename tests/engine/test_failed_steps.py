"""A step that finds no memory, or leaves NaN: nothing of it is used later, and nothing is held for ever."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine import swap_store
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput, StateCopy, StepResult
from sparkinfer.engine.snapshot_pool import SnapshotPool
from sparkinfer.engine.snapshot_store import SnapshotStore
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.request import FinishReason, RequestId
from tests.engine.hash_model import REQUESTS, HashState, Rig, solo
from tests.engine.scheduling import PagedDevice, add, make_scheduler, make_sequence, solo_output

BIG = 1 << 30


def fail(scheduler, output: SchedulerOutput) -> None:
    scheduler.fail(output, 1.0, 503, "out_of_memory", "No room.")


def finish(scheduler, device) -> None:
    while scheduler.num_open_requests:
        output = scheduler.schedule()
        scheduler.update(output, device.run(output), 1.0)
        scheduler.check_integrity()


def preempted(space: SwapSpace):
    """A scheduler, its device and two sequences, the second of which waits in host memory."""
    scheduler = make_scheduler(6, 2, swap_space=space)
    device = PagedDevice(6, 2, 64, vocab_size=1000, has_state=True)
    first, second = make_sequence(1, [1, 1, 1]), make_sequence(2, [2, 2, 2])
    add(scheduler, first, second)
    while not device.swapped:
        output = scheduler.schedule()
        scheduler.update(output, device.run(output), 1.0)
    return scheduler, device, first, second


@pytest.mark.parametrize("lost", ["the way back", "the news that it ended"])
def test_host_copies_are_given_back_by_a_later_step_when_the_one_that_should_failed(lost: str) -> None:
    scheduler, device, first, second = preempted(SwapSpace(BIG, 1, 1))
    scheduler.abort(RequestId(1 if lost == "the way back" else 2), 1.0)
    output = scheduler.schedule()
    assert output.swap_ins or output.swap_drops
    device.leave_undone(output)
    fail(scheduler, output)
    third = make_sequence(3, [3, 3])
    add(scheduler, third)
    finish(scheduler, device)
    assert not device.swapped
    assert third.output_token_ids == solo_output([3, 3], third.max_output_tokens, 1000)
    assert {first.finish_reason, second.finish_reason} == {FinishReason.ABORT, FinishReason.ERROR}


def test_a_state_that_was_not_saved_is_not_resumed_from() -> None:
    """It was to be kept at a node that another sequence, which lives on, has had for long."""
    scheduler = make_scheduler(60, 2, num_snapshots=8, policy="priority", max_num_batched_tokens=2)
    device = PagedDevice(60, 2, 64, vocab_size=1000, has_state=True)
    cache = scheduler.prefix_cache
    shared = [1, 2, 3, 4, 5, 6]
    longer = [*shared, 7, 8, 9, 10]
    add(scheduler, make_sequence(0, [*longer, 11], max_tokens=1))
    finish(scheduler, device)
    survivor = make_sequence(1, [*longer, *range(30, 60)], max_tokens=4, priority=1)
    add(scheduler, survivor)
    output = scheduler.schedule()
    scheduler.update(output, device.run(output), 1.0)
    assert survivor.num_cached_tokens == len(longer)
    for node in cache.nodes():
        if node.depth <= 3:  # as if the states of others had taken their place
            cache._drop_snapshot(node)
    add(scheduler, make_sequence(2, [*shared, 20, 21], max_tokens=1))
    while not [copy for copy in output.state_copies if not copy.restores]:
        output = scheduler.schedule()
        if not output.state_copies:
            scheduler.update(output, device.run(output), 1.0)
    device.leave_undone(output)
    fail(scheduler, output)
    assert survivor.finish_reason is None
    again = make_sequence(3, [*shared, 20, 21], max_tokens=5)
    add(scheduler, again)
    finish(scheduler, device)
    assert again.output_token_ids == solo_output([*shared, 20, 21], 5, 1000)
    assert survivor.output_token_ids == solo_output(survivor.prompt_token_ids, 4, 1000)


def test_a_copy_that_found_no_memory_costs_its_sequences_only() -> None:
    """The step behind it, launched already, may be told to bring back what was never taken out."""
    alone = solo(REQUESTS)
    full = torch.OutOfMemoryError("no pinned memory")
    with Rig(num_blocks=20, swap_space=SwapSpace(BIG, 1, 1), prefill_chunk_tokens=7) as rig:
        rig.model.has_failed = True
        copies = mock.Mock(wraps=swap_store._to_host, side_effect=[full] * 3 + [mock.DEFAULT] * 1000)
        with mock.patch.object(swap_store, "_to_host", copies):
            sink = rig.run(REQUESTS)
        codes = {key: sequence.code for key, sequence in sink.finished.items()}
        assert {"out_of_memory", None} == set(codes.values())
        for i, (tokens, _) in enumerate(alone):
            assert sink.tokens.get((i, 0), []) == (tokens if codes[i, 0] is None else tokens[: len(sink.tokens[i, 0])])
        assert rig.runner._copies._swap_store.num_entries <= len(rig.scheduler._cache.swap_space._drops)


def test_a_state_that_was_never_saved_can_be_asked_for() -> None:
    """By a step on its way for sequences that end with the one that failed."""
    pool = HashState(3)
    store = SnapshotStore(pool)
    store.copy([StateCopy(1, 5, restores=True)])
    store.copy([StateCopy(2, 5, restores=False), StateCopy(1, 5, restores=True)])
    assert pool.hashes[1] == pool.hashes[2]


@pytest.mark.parametrize("has_state", [True, False])
def test_nan_that_two_sequences_share_stays_with_neither(has_state: bool) -> None:
    """Whoever fails last takes the blocks out that the first could not, for they were in use."""
    blocks = BlockManager(40, 2)
    cache = PrefixCache(PrefixCacheConfig(min_tokens=0), blocks, SnapshotPool(8) if has_state else None)
    scheduler = Scheduler(SchedulerConfig(prefill_chunk_tokens=4), CacheManager(blocks, cache), 1000)
    first, second = (make_sequence(1, [1, 2, 3, 4, 5, 6, 7, 8, 9], choice=choice) for choice in (0, 1))
    scheduler.add([first, second], 0.0)
    in_flight = []
    while not second.num_sampled_tokens:
        in_flight.append(scheduler.schedule())
    assert second.block_table[0] == first.block_table[0]
    for output in in_flight:
        rows = range(len(output.sampling_rows))
        scheduler.update(output, StepResult([0] * len(rows), nan_rows=list(rows)), 1.0)
    assert (first.code, second.code) == ("nan_logits", "nan_logits")
    assert scheduler.prefix_cache.num_nodes == 0
    scheduler.check_integrity()
