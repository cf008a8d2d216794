"""Slots and blocks of the running sequences. Knows who holds what; never who should run, or what a step computes."""

from __future__ import annotations

from sparkinfer.engine.block_manager import IntegrityError
from sparkinfer.engine.block_reservations import BlockReservations
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.mask_source import NO_MASK_ROW
from sparkinfer.engine.scheduler_output import SchedulerOutput
from sparkinfer.engine.sequence import NO_SLOT, BlockId, Sequence, SlotId


class Placement:
    """Invariant: a sequence has a slot, and blocks for its known tokens, from `try_place` to `release`."""

    def __init__(self, cache: CacheManager, num_slots: int, is_reserving: bool) -> None:
        """is_reserving: a sequence is placed only if its blocks last to its end."""
        self._cache = cache
        self._swap_space = cache.swap_space
        self.is_reserving = is_reserving
        self._num_slots = num_slots
        self._free_slots = [SlotId(slot) for slot in range(num_slots - 1, -1, -1)]
        self._reservations = BlockReservations(cache, is_reserving)

    def try_place(self, sequence: Sequence) -> bool:
        """Give a sequence whose tokens are all known a slot and blocks for them; False when they are not to be had."""
        cache = self._cache
        if not self._free_slots or not cache.can_allocate(sequence.num_blocks_awaited):
            return False
        lease = cache.find(sequence)
        num_new_blocks = cache.num_blocks_for(sequence.num_tokens) - lease.num_matched_blocks
        if not self._reservations.can_admit(sequence, num_new_blocks, self._num_slots - len(self._free_slots)):
            cache.give_up(sequence, lease)
            return False
        sequence.slot = self._free_slots.pop()
        cache.place(sequence, lease)
        if sequence.num_swapped_tokens:
            self._swap_space.swap_in(sequence, cache.block_size)
        sequence.num_prefill_tokens = sequence.num_known_tokens
        sequence.is_new_in_slot = True
        sequence.is_late = False
        self._reservations.admit(sequence)
        return True

    def needs_block(self, sequence: Sequence) -> bool:
        """Whether the next token has no place yet."""
        return sequence.num_computed_tokens >= len(sequence.block_table) * self._cache.block_size

    def grow(self, sequence: Sequence) -> tuple[BlockId, ...]:
        """Add a block to a sequence's table; the caller has asked the cache manager's can_allocate."""
        new_blocks = self._cache.grow(sequence)
        self._reservations.grow(sequence)
        return new_blocks

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and blocks back for a while; what was computed is kept in host memory or computed again."""
        # A late mask, or nothing to follow the prompt, could leave nothing to compute on the way back.
        if sequence.mask_row == NO_MASK_ROW and sequence.max_output_tokens:
            self._swap_space.try_swap_out(sequence, self._cache.block_size)
        self._take_back(sequence, is_sound=True)
        sequence.num_computed_tokens = 0

    def end_step(self, output: SchedulerOutput) -> None:
        """The step is complete: it gets its copies between host and device."""
        self._cache.end_step(output)
        self._swap_space.end_step(output)

    def release(self, sequence: Sequence, is_sound: bool = True) -> None:
        """Take slot and blocks back. Steps in flight may still use them: later steps run behind those.

        is_sound False: nothing that was computed for it may serve others.
        """
        self.forget(sequence)
        self._take_back(sequence, is_sound)

    def forget(self, sequence: Sequence) -> None:
        """A sequence that waits has ended."""
        self._swap_space.drop(sequence)

    def victims_of(self, output: SchedulerOutput) -> list[Sequence]:
        """Sequences, beside those of its rows, that rely on a step that failed."""
        return [*self._cache.victims_of(output), *self._swap_space.victims_of(output)]

    def _take_back(self, sequence: Sequence, is_sound: bool) -> None:
        self._cache.release(sequence, is_sound)
        self._reservations.release(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = NO_SLOT

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise IntegrityError if a block or a slot is lost or has two owners."""
        self._cache.check_integrity(sequence.block_table for sequence in running)
        self._reservations.check_integrity(running)
        self._swap_space.check_integrity()
        slots = {sequence.slot for sequence in running} | set(self._free_slots)
        if not len(slots) == len(running) + len(self._free_slots) == self._num_slots:
            raise IntegrityError(f"slots: {len(running)} taken, {len(self._free_slots)} free, {len(slots)} known")
