"""PrefixCache: what is found, what is kept, and what goes first when others need the room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.config import PrefixCacheConfig
from sparkinfer.engine.block_manager import BlockManager, IntegrityError
from sparkinfer.engine.cache_report import explain
from sparkinfer.engine.checkpoint_plan import MIN_GAP_TOKENS, plan_checkpoints
from sparkinfer.engine.prefix_cache import PrefixCache, token_key
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.snapshot_pool import SnapshotPool
from sparkinfer.request import CacheReport

BLOCK_SIZE = 2


class Rig:
    def __init__(self, num_blocks: int = 8, num_snapshots: int | None = None) -> None:
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE)
        self.snapshots = None if num_snapshots is None else SnapshotPool(num_snapshots)
        self.cache = PrefixCache(PrefixCacheConfig(), self.blocks, self.snapshots)

    def store(self, tokens: list[int], snapshots_at: tuple[int, ...] = (), salt: bytes = b"", unlock: bool = True):
        """Compute `tokens` as a sequence would, and end; returns the deepest node."""
        data = token_key(tokens)
        node = self.cache.match(token_key([*tokens, 0, 0]), salt)
        self.cache.lock(node)
        for index in range(node.depth, len(tokens) // BLOCK_SIZE):
            while not self.blocks.can_allocate(1):
                assert self.cache.evict_block()
            (block,) = self.blocks.allocate(1)
            node = self.cache.insert(node, data[index * 8 : index * 8 + 8], block)
            self.blocks.free([block])
            if node.depth * BLOCK_SIZE in snapshots_at:
                self.cache.attach(node, self.cache.allocate_snapshot())
        if unlock:
            self.cache.unlock(node)
        self.check()
        return node

    def found(self, tokens: list[int], salt: bytes = b"") -> int:
        return self.cache.match(token_key(tokens), salt).depth * BLOCK_SIZE

    def report(self, tokens: list[int]) -> CacheReport:
        data = token_key(tokens)
        return explain(self.cache, data, PrefixHints(), self.cache.match(data, b""))

    def check(self) -> None:
        self.blocks.check_integrity([], [node.block for node in self.cache.nodes()])
        self.cache.check_integrity([])


def test_the_longest_block_boundary_before_the_last_token_is_found():
    rig = Rig()
    rig.store([1, 2, 3, 4, 5, 6])
    assert [rig.found([1, 2, 3, 4, 5, 6][:length]) for length in range(1, 7)] == [0, 0, 2, 2, 4, 4]
    assert rig.found([1, 2, 3, 4, 5, 6, 7]) == 6
    assert rig.found([1, 2, 3, 9, 5, 6, 7]) == 2
    assert rig.found([9, 2, 3, 4, 5, 6, 7]) == 0


def test_salts_share_nothing():
    rig = Rig()
    rig.store([1, 2, 3, 4], salt=b"a")
    assert (rig.found([1, 2, 3, 4, 5], b"a"), rig.found([1, 2, 3, 4, 5], b"b"), rig.found([1, 2, 3, 4, 5])) == (4, 0, 0)


def test_a_common_beginning_is_kept_once():
    rig = Rig()
    rig.store([1, 2, 3, 4])
    rig.store([1, 2, 7, 8])
    assert (rig.cache.num_nodes, rig.cache.num_leaves, rig.blocks.num_free_blocks) == (3, 2, 5)


def test_the_least_recently_used_leaf_goes_first():
    rig = Rig(num_blocks=4)
    rig.store([1, 2, 3, 4])
    rig.store([5, 6, 7, 8])
    rig.store([1, 2, 3, 4])
    rig.store([9, 9])
    assert (rig.found([1, 2, 3, 4, 0]), rig.found([5, 6, 7, 8, 0])) == (4, 2)
    rig.store([9, 9, 8, 8])
    assert (rig.found([1, 2, 3, 4, 0]), rig.found([5, 6, 7, 8, 0])) == (4, 0)
    assert rig.cache.stats.num_evictions == 2


def test_what_a_running_sequence_uses_stays():
    rig = Rig(num_blocks=4)
    node = rig.store([1, 2, 3, 4], unlock=False)
    rig.store([5, 6, 7, 8])
    assert rig.cache.num_evictable == 2
    assert [rig.cache.evict_block() for _ in range(3)] == [True, True, False]
    assert rig.found([1, 2, 3, 4, 0]) == 4
    rig.cache.unlock(node)
    assert [rig.cache.evict_block() for _ in range(3)] == [True, True, False]
    assert rig.blocks.num_free_blocks == 4
    rig.check()


def test_recurrent_models_resume_only_where_there_is_a_snapshot():
    rig = Rig(num_snapshots=4)
    rig.store([1, 2, 3, 4, 5, 6], snapshots_at=(4,))
    assert rig.found([1, 2, 3, 4, 5, 6, 7]) == 4
    assert rig.found([1, 2, 3, 4, 5]) == 4
    assert rig.found([1, 2, 3, 4]) == 0


def test_blocks_behind_the_last_snapshot_are_given_back_at_once():
    rig = Rig(num_snapshots=4)
    rig.store([1, 2, 3, 4, 5, 6], snapshots_at=(4,))
    rig.store([7, 8, 9, 9])
    assert (rig.cache.num_nodes, rig.blocks.num_free_blocks) == (2, 6)


def test_the_least_recently_used_snapshot_goes_with_its_blocks():
    rig = Rig(num_snapshots=2)
    rig.store([1, 2], snapshots_at=(2,))
    rig.store([3, 4, 5, 6], snapshots_at=(4,))
    rig.cache.touch(rig.cache.match(token_key([1, 2, 3]), b""))
    rig.store([7, 8], snapshots_at=(2,))
    assert (rig.found([1, 2, 0]), rig.found([3, 4, 5, 6, 0]), rig.found([7, 8, 0])) == (2, 0, 2)
    assert rig.blocks.num_free_blocks == 6


def test_a_block_takes_its_snapshot_along():
    rig = Rig(num_snapshots=2)
    rig.store([1, 2], snapshots_at=(2,))
    assert rig.cache.evict_block()
    assert rig.snapshots.num_used == 0
    rig.check()


def test_eviction_is_remembered():
    rig = Rig()
    rig.store([1, 2, 3, 4])
    assert rig.cache.evict_block()
    parent = rig.cache.match(token_key([1, 2, 3, 4, 0]), b"")
    assert rig.cache.was_evicted(parent, token_key([3, 4]))
    assert not rig.cache.was_evicted(parent, token_key([3, 5]))


def test_what_was_wrong_is_forgotten_with_all_that_followed_it():
    rig = Rig()
    rig.store([1, 2, 3, 4, 5, 6])
    rig.store([1, 2, 3, 4, 7, 8])
    rig.cache.forget(rig.cache.match(token_key([1, 2, 3, 4, 0]), b""))
    assert rig.found([1, 2, 3, 4, 5, 6, 0]) == 2
    rig.check()


def test_the_check_sees_a_lost_snapshot():
    rig = Rig(num_snapshots=2)
    rig.cache.allocate_snapshot()
    with pytest.raises(IntegrityError, match="snapshots: 1 held or free"):
        rig.cache.check_integrity([])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=10), st.booleans(), st.integers(0, 10)), max_size=30
    ),
    st.booleans(),
)
def test_any_history_keeps_the_books(history, has_state):
    rig = Rig(num_blocks=12, num_snapshots=3 if has_state else None)
    locked = []
    for tokens, stays, snapshot_at in history:
        if len(tokens) // BLOCK_SIZE > rig.blocks.num_free_blocks + rig.cache.num_evictable:
            for node in locked:
                rig.cache.unlock(node)
            locked.clear()
        node = rig.store(tokens, (snapshot_at,) if has_state else (), unlock=not stays)
        if stays:
            locked.append(node)
        assert rig.found([*tokens, 2, 2]) == len(tokens) // BLOCK_SIZE * BLOCK_SIZE or has_state
    for node in locked:
        rig.cache.unlock(node)
    while rig.cache.evict_block():
        rig.check()
    assert rig.blocks.num_free_blocks == 12


@settings(max_examples=200, deadline=None)
@given(
    turns=st.lists(st.integers(0, 3000), max_size=8),
    num_tokens=st.integers(1, 3000),
    start_block=st.integers(0, 100),
    min_tokens=st.integers(0, 200),
    checkpoint_tokens=st.integers(0, 1000),
)
def test_checkpoints_are_block_boundaries_within_reach(turns, num_tokens, start_block, min_tokens, checkpoint_tokens):
    config = PrefixCacheConfig(min_tokens=min_tokens, checkpoint_tokens=checkpoint_tokens)
    start = start_block * 16
    plan = plan_checkpoints(sorted(turns), num_tokens, start, config, 16)
    assert plan == sorted(set(plan), reverse=True)
    assert all(position % 16 == 0 and max(start, min_tokens - 1) < position < num_tokens for position in plan)
    last = (num_tokens - 1) // 16 * 16
    assert not plan or plan[0] == last
    turn = max((position // 16 * 16 for position in turns if position < num_tokens), default=0)
    inner = sorted(set(plan) - {last, turn})
    assert all(b - a >= MIN_GAP_TOKENS for a, b in zip([start, *inner], inner, strict=False))


@pytest.mark.parametrize(
    ("prompt", "reason", "matched", "diverged_at"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], "not_cached_further", 6, None),
        ([1, 2, 3, 4, 5, 6, 7, 8], "whole_prompt", 6, None),
        ([1, 2, 3, 4, 5, 6], "whole_prompt", 6, None),
        ([1, 2, 3, 9, 5, 6], "diverged", 3, 3),
        ([1, 2, 3, 4, 9, 6], "diverged", 4, 4),
        ([9, 2, 3], "diverged", 0, 0),
        ([1, 2, 3, 4, 5, 6, 7], "whole_prompt", 6, None),
    ],
)
def test_a_report_says_where_a_prompt_departs(prompt, reason, matched, diverged_at):
    rig = Rig()
    rig.store([1, 2, 3, 4, 5, 6])
    report = rig.report(prompt)
    assert (report.reason, report.matched_tokens, report.diverged_at) == (reason, matched, diverged_at)
    assert report.cached_tokens == rig.found(prompt)


def test_a_report_knows_what_was_evicted_what_lacks_a_checkpoint_and_what_was_never_there():
    rig = Rig()
    assert rig.report([1, 2, 3]).reason == "nothing_cached"
    rig.store([1, 2, 3, 4])
    rig.cache.evict_block()
    assert rig.report([1, 2, 3, 4, 5]) == CacheReport("evicted", 2, 2, None)
    rig = Rig(num_snapshots=4)
    assert rig.report([1, 2, 3]).reason == "below_minimum"
    rig.store([1, 2, 3, 4, 5, 6], snapshots_at=(2, 6))
    assert rig.report([1, 2, 3, 4, 9, 9]) == CacheReport("no_checkpoint", 2, 4, 4)


@pytest.mark.parametrize("num_snapshots", [None, 4])
def test_a_prompt_of_which_nothing_more_could_be_reused_is_always_whole(num_snapshots):
    """Its last token is computed in any case; what was evicted once and is there again does not count."""
    rig = Rig(num_snapshots=num_snapshots)
    assert rig.report([1]) == CacheReport("whole_prompt", 0, 0, None)
    tokens = [1, 2, 3, 4, 5, 6]
    for _ in range(2):
        rig.store(tokens, **({} if num_snapshots is None else {"snapshots_at": (4, 6)}))
        assert rig.report([*tokens, 7]) == CacheReport("whole_prompt", 6, 6, None)
        assert rig.report(tokens) == CacheReport("whole_prompt", 4, 6, None)
        while rig.cache.evict_block():
            pass
    assert rig.report(tokens).reason == "evicted"


def test_a_report_without_the_cache_says_so():
    rig = Rig()
    assert explain(None, b"", PrefixHints(), rig.cache.root(b"")).reason == "disabled"
    assert explain(rig.cache, b"", PrefixHints(uses_cache=False), rig.cache.root(b"")).reason == "opted_out"
