"""Slots and blocks of the running sequences. Knows who holds what; never who should run, or what a step computes."""

from __future__ import annotations

from sparkinfer.engine.block_manager import BlockManager, IntegrityError
from sparkinfer.engine.block_reservations import BlockReservations
from sparkinfer.engine.sequence import NO_SLOT, BlockId, Sequence, SlotId


class Placement:
    """Invariant: a sequence has a slot, and blocks for its known tokens, from `try_place` to `release`."""

    def __init__(self, block_manager: BlockManager, num_slots: int, is_reserving: bool) -> None:
        """is_reserving: a sequence is placed only if its blocks last to its end."""
        self.block_manager = block_manager
        self.is_reserving = is_reserving
        self._num_slots = num_slots
        self._free_slots = [SlotId(slot) for slot in range(num_slots - 1, -1, -1)]
        self._reservations = BlockReservations(block_manager, is_reserving)

    def try_place(self, sequence: Sequence) -> bool:
        """Give a sequence whose tokens are all known a slot and blocks for them; False when they are not to be had."""
        if not self._free_slots:
            return False
        num_blocks = self.block_manager.num_blocks_for(sequence.num_tokens)
        if not self._reservations.can_admit(sequence, num_blocks, self._num_slots - len(self._free_slots)):
            return False
        sequence.slot = self._free_slots.pop()
        sequence.block_table = self.block_manager.allocate(num_blocks)
        sequence.num_prefill_tokens = sequence.num_tokens
        sequence.is_new_in_slot = True
        self._reservations.admit(sequence)
        return True

    def needs_block(self, sequence: Sequence) -> bool:
        """Whether the next token has no place yet."""
        return sequence.num_computed_tokens >= len(sequence.block_table) * self.block_manager.block_size

    def grow(self, sequence: Sequence) -> tuple[BlockId, ...]:
        """Add a block to a sequence's table; the caller has asked the block manager's can_allocate."""
        new_blocks = tuple(self.block_manager.allocate(1))
        sequence.block_table.extend(new_blocks)
        self._reservations.grow(sequence)
        return new_blocks

    def release(self, sequence: Sequence) -> None:
        """Take slot and blocks back. Steps in flight may still use them: later steps run behind those."""
        self.block_manager.free(sequence.block_table)
        self._reservations.release(sequence)
        self._free_slots.append(sequence.slot)
        sequence.block_table = []
        sequence.slot = NO_SLOT

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise IntegrityError if a block or a slot is lost or has two owners."""
        self.block_manager.check_integrity(sequence.block_table for sequence in running)
        self._reservations.check_integrity(running)
        slots = {sequence.slot for sequence in running} | set(self._free_slots)
        if not len(slots) == len(running) + len(self._free_slots) == self._num_slots:
            raise IntegrityError(f"slots: {len(running)} taken, {len(self._free_slots)} free, {len(slots)} known")
