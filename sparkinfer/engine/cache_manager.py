"""Blocks for sequences: cached ones first, new ones behind them. Knows prefixes; never budgets, slots or queues.

Whatever the Scheduler asks of the KV pool goes through here, so that it can ignore where a block comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_report import explain
from sparkinfer.engine.checkpoint_plan import plan_checkpoints
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.prefix_cache import PrefixCache, token_key
from sparkinfer.engine.prefix_node import PrefixNode
from sparkinfer.engine.reliance import Reliance
from sparkinfer.engine.rolling_snapshots import RollingSnapshots
from sparkinfer.engine.scheduler_output import SchedulerOutput, StateCopy
from sparkinfer.engine.sequence import BlockId, Sequence
from sparkinfer.engine.shared_prefill import SharedPrefill
from sparkinfer.engine.swap_space import SwapSpace


@dataclass(slots=True, eq=False)
class Lease:
    """What one sequence has of the prefix cache."""

    data: bytes                          # its tokens on admission, as nodes keep them
    node: PrefixNode                     # deepest node of its tokens, locked
    num_matched_blocks: int
    checkpoints: list[int] = field(default_factory=list)  # positions still to be saved, nearest last


class CacheManager:
    """A BlockManager that evicts cached prefixes before it refuses; with `prefix_cache` None, just a BlockManager.

    A block is in the cache by the end of the `schedule` that computes it: steps run in launch order, so a sequence
    admitted to the next step may read it.
    """

    def __init__(
        self, block_manager: BlockManager, prefix_cache: PrefixCache | None = None, swap_space: SwapSpace | None = None,
        prompt_grid: int = 0,
    ) -> None:
        """prompt_grid: not 0 where a prompt's numbers must not depend on what is cached, though an answer's tokens are
        computed in another way: checkpoints lie at multiples of so many tokens, and answers are not shared.
        """
        self.num_blocks = block_manager.num_blocks
        self.block_size = block_manager.block_size
        self.num_blocks_for = block_manager.num_blocks_for
        self.prefix_cache = prefix_cache
        self.swap_space = swap_space or SwapSpace(0, 1, 0)  # of sequences that the blocks do not suffice for
        self._block_manager = block_manager
        self.prompt_grid = prompt_grid
        self._has_state = prefix_cache is not None and prefix_cache.snapshots is not None
        self._leases: dict[Sequence, Lease] = {}
        self._shared_prefill = SharedPrefill(block_manager.block_size, self._has_state)
        self._reliance = Reliance()
        keeps_answers = self._has_state and not prompt_grid
        self._rolling = RollingSnapshots(prefix_cache) if keeps_answers and prefix_cache else None
        self.disk: DiskTier | None = None
        self._state_copies: list[StateCopy] = []

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be had at once: held by nobody, or by nobody but the cache."""
        cache = self.prefix_cache
        return self._block_manager.num_free_blocks + (0 if cache is None else cache.num_evictable)

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= self.num_free_blocks

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Hand out `num_blocks` blocks, cached ones too if need be; the caller has asked can_allocate."""
        while not self._block_manager.can_allocate(num_blocks) and self.prefix_cache is not None:
            if not self.prefix_cache.evict_block():
                break
        return self._block_manager.allocate(num_blocks)

    def should_wait(self, sequence: Sequence) -> bool:
        """Whether more of a waiting sequence's tokens will soon be there: somebody computes them, or reads them."""
        cache = self.prefix_cache
        if cache is None or not sequence.hints.uses_cache or sequence.has_tokens_in_flight:
            return False
        if sequence.num_swapped_tokens:
            return False
        if not (self._shared_prefill or self.disk) or self.num_free_blocks < sequence.num_blocks_awaited:
            return False
        if self._shared_prefill.is_waiting(sequence):
            return True
        data = token_key(sequence.token_ids(0, self._num_shared(sequence)))
        node = cache.match(data, sequence.hints.salt)
        if self._shared_prefill.must_wait(sequence, data, node.depth * self.block_size):
            return True
        return self.disk is not None and self.disk.must_wait(sequence, data, node)

    def find(self, sequence: Sequence) -> Lease:
        """The longest cached prefix of a waiting sequence, held until `place` or `give_up`."""
        cache = self.prefix_cache
        if cache is None or not sequence.hints.uses_cache or sequence.num_swapped_tokens:
            return Lease(b"", _NOWHERE, 0)
        data = token_key(sequence.token_ids(0, self._num_shared(sequence)))
        if self.disk is not None:
            self._state_copies += self.disk.graft(sequence, data, self._allocate_one)
        node = cache.match(data, sequence.hints.salt)
        cache.lock(node)
        return Lease(data, node, node.depth)

    def give_up(self, sequence: Sequence, lease: Lease) -> None:
        """There was no room for the rest."""
        num_available = self.num_free_blocks
        if self.prefix_cache is not None and lease.node is not _NOWHERE:
            self.prefix_cache.unlock(lease.node)
        num_tied = self.num_free_blocks - num_available
        num_new = self.num_blocks_for(sequence.num_tokens) - lease.num_matched_blocks
        sequence.num_blocks_awaited = num_new + num_tied

    def place(self, sequence: Sequence, lease: Lease) -> None:
        """Give a sequence, which has its slot, blocks for all its known tokens; what is cached counts as computed."""
        sequence.num_blocks_awaited = 0
        sequence.block_table = lease.node.blocks()
        for block in sequence.block_table:
            self._block_manager.share(block)
        num_blocks = self.num_blocks_for(sequence.num_tokens)
        sequence.block_table += self.allocate(num_blocks - lease.num_matched_blocks)
        if sequence.hints.wants_explanation and sequence.cache_report is None:
            sequence.cache_report = explain(self.prefix_cache, lease.data, sequence.hints, lease.node)
        if self.prefix_cache is not None and lease.node is not _NOWHERE:
            self._resume(sequence, lease, self.prefix_cache)

    def grow(self, sequence: Sequence) -> tuple[BlockId, ...]:
        """One more block for a sequence whose blocks are full; the caller has asked can_allocate."""
        new_blocks = tuple(self.allocate(1))
        sequence.block_table.extend(new_blocks)
        snapshot = self._rolling.renew(sequence) if self._rolling is not None and sequence in self._leases else None
        if snapshot is not None:
            self._state_copies.append(StateCopy(sequence.slot, snapshot, restores=False))
        return new_blocks

    def start_chunk(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of the next `num_tokens` prompt tokens to compute now: as far as the next checkpoint.

        A checkpoint that has been reached is saved before the step.
        """
        lease = self._leases.get(sequence)
        if lease is None or not lease.checkpoints:
            return num_tokens
        start = sequence.num_computed_tokens
        while lease.checkpoints and lease.checkpoints[-1] <= start:
            if lease.checkpoints.pop() == start:
                self._save_checkpoint(sequence, lease)
        return min(num_tokens, lease.checkpoints[-1] - start) if lease.checkpoints else num_tokens

    def end_step(self, output: SchedulerOutput) -> None:
        """The step is complete: it gets its state copies, and what it computes may be shared from the next one on."""
        cache = self.prefix_cache
        if cache is None or not output.rows:
            return
        for row in output.scheduled:
            if row.token_ids is not None and (lease := self._leases.get(row.sequence)) is not None:
                known = min(row.start + row.num_tokens, len(lease.data) // 4)  # forced tokens came later
                self._insert(row.sequence, lease, lease.data, known)
                self._shared_prefill.advance(row.sequence)
        cache.epoch += 1
        output.epoch = cache.epoch
        output.state_copies, self._state_copies = self._state_copies, []
        if self.disk is not None:
            self.disk.end_step(output)

    def complete(self, output: SchedulerOutput) -> None:
        """The step has run."""
        self._reliance.complete(output.epoch)
        if self._rolling is not None:
            self._rolling.settle()
        if self.disk is not None:
            self.disk.completed_epoch = output.epoch

    def prove(self, sequence: Sequence) -> None:
        """A running sequence has its first token: what it was computed from holds no NaN."""
        lease = self._leases.get(sequence)
        if lease is not None:
            lease.node.prove()

    def release(self, sequence: Sequence, is_sound: bool = True) -> None:
        """Take back a sequence's blocks; the cache keeps the full ones among those that were computed.

        is_sound False: nothing that this sequence computed may be used again, nor what it found that is not proven.
        """
        lease = self._leases.pop(sequence, None)
        if lease is not None:
            self._shared_prefill.discard(sequence)
            self._end_lease(sequence, lease, is_sound)
        self._block_manager.free(sequence.block_table)
        sequence.block_table = []

    def victims_of(self, output: SchedulerOutput) -> list[Sequence]:
        """Running sequences that rely on what others computed in a step that failed, or in one behind it."""
        victims = self._reliance.on(output.epoch)
        for sequence, lease in self._leases.items():
            table = sequence.block_table
            if any(node.epoch >= output.epoch and table[node.depth - 1] != node.block for node in lease.node.path()):
                victims.append(sequence)
        return victims

    def forget(self, output: SchedulerOutput) -> None:
        """The step failed, and whoever relied on it has been ended: nothing of it may be found any more."""
        self.swap_space.forget(output)
        if self.prefix_cache is not None:
            for node in list(self.prefix_cache.nodes()):
                if node.epoch >= output.epoch:
                    self.prefix_cache.forget(node)

    def check_integrity(self, block_tables: Iterable[list[BlockId]]) -> None:
        """Raise IntegrityError if a block or snapshot is lost or has an owner too many."""
        cache = self.prefix_cache
        cached = () if cache is None else [node.block for node in cache.nodes()]
        self._block_manager.check_integrity(block_tables, cached)
        if cache is not None:
            cache.check_integrity([] if self._rolling is None else self._rolling.snapshots)

    def _num_shared(self, sequence: Sequence) -> int:
        """Known tokens that may be another's too."""
        return sequence.num_prompt_tokens if self.prompt_grid else sequence.num_tokens

    def _allocate_one(self) -> BlockId | None:
        return self.allocate(1)[0] if self.can_allocate(1) else None

    def _resume(self, sequence: Sequence, lease: Lease, cache: PrefixCache) -> None:
        node = lease.node
        num_cached_tokens = node.depth * self.block_size
        sequence.num_computed_tokens = num_cached_tokens
        self._reliance.note(sequence, node)
        if sequence.num_preemptions == 0 and sequence.choice == 0:
            sequence.num_cached_tokens = num_cached_tokens
        if node.snapshot is not None:
            cache.touch(node)
            self._state_copies.append(StateCopy(sequence.slot, node.snapshot, restores=True))
        cache.stats.num_lookups += 1
        cache.stats.num_hits += num_cached_tokens > 0
        cache.stats.num_tokens_reused += num_cached_tokens
        if self._has_state:
            lease.checkpoints = plan_checkpoints(
                sequence.hints.turn_starts, len(lease.data) // 4, num_cached_tokens, cache.config,
                math.lcm(self.block_size, self.prompt_grid or 1),
            )
        self._leases[sequence] = lease
        self._shared_prefill.add(sequence, lease.data, lease.checkpoints)

    def _insert(self, sequence: Sequence, lease: Lease, data: bytes, num_tokens: int) -> None:
        """Let the tree follow the sequence's full blocks up to `num_tokens`."""
        cache = self.prefix_cache
        assert cache is not None
        width = 4 * self.block_size
        node = lease.node
        for index in range(node.depth, num_tokens // self.block_size):
            node = cache.insert(node, data[index * width : (index + 1) * width], sequence.block_table[index])
        lease.node = node

    def _save_checkpoint(self, sequence: Sequence, lease: Lease) -> None:
        cache = self.prefix_cache
        assert cache is not None
        self._insert(sequence, lease, lease.data, sequence.num_computed_tokens)
        if lease.node.snapshot is not None:
            return
        snapshot = cache.allocate_snapshot()
        if snapshot is not None:
            cache.attach(lease.node, snapshot)
            self._state_copies.append(StateCopy(sequence.slot, snapshot, restores=False))

    def _end_lease(self, sequence: Sequence, lease: Lease, is_sound: bool) -> None:
        cache = self.prefix_cache
        assert cache is not None
        if is_sound:
            num_valid = min(sequence.num_computed_tokens, self._num_shared(sequence))
            if num_valid // self.block_size > lease.node.depth:
                self._insert(sequence, lease, token_key(sequence.token_ids(0, num_valid)), num_valid)
            if sequence.first_token_at is not None:
                lease.node.prove()
        if self._rolling is not None:
            path = {node.depth * self.block_size: node for node in lease.node.path()} if is_sound else {}
            self._rolling.end(sequence, path)
        computed = [node for node in lease.node.path() if node.depth > lease.num_matched_blocks]
        for node in reversed(computed):
            cache.touch(node)  # it is from its end on that a conversation may go on
        cache.unlock(lease.node)
        if not is_sound:
            matched = lease.num_matched_blocks
            doubtful = [node for node in lease.node.path() if node.depth > matched or not node.is_proven]
            for node in reversed(doubtful):
                cache.forget(node, is_suspect=node.block == sequence.block_table[node.depth - 1])


_NOWHERE = PrefixNode(None, b"", BlockId(-1), 0)  # of sequences that have nothing to do with the cache
