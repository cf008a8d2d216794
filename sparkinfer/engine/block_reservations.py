"""Which free blocks are spoken for. Knows counts of blocks; never which blocks, or who decides about sequences."""

from __future__ import annotations

from sparkinfer.engine.block_manager import IntegrityError
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.sequence import Sequence


class BlockReservations:
    """What admission leaves free for the sequences that run already.

    on_demand:  one block per running sequence, so that a newcomer runs for a block's length before it can be preempted
    reserve:    every block that a running sequence can still need, so that none is ever preempted for lack of blocks

    Invariant (reserve): num_promised is the sum of the running sequences' num_promised_blocks, and is free.
    """

    def __init__(self, cache: CacheManager, is_reserving: bool) -> None:
        self.is_reserving = is_reserving
        self.num_promised = 0
        self._cache = cache

    def can_admit(self, sequence: Sequence, num_new_blocks: int, num_running: int) -> bool:
        """Whether `sequence` may start, which takes `num_new_blocks` at once."""
        spoken_for = self.num_promised + self._later_blocks(sequence) if self.is_reserving else num_running
        return self._cache.can_allocate(num_new_blocks + spoken_for)

    def admit(self, sequence: Sequence) -> None:
        """`sequence` has the blocks of all its known tokens now."""
        if self.is_reserving:
            sequence.num_promised_blocks = self._later_blocks(sequence)
            self.num_promised += sequence.num_promised_blocks

    def grow(self, sequence: Sequence) -> None:
        """`sequence` was given one of the blocks promised to it."""
        if self.is_reserving:
            sequence.num_promised_blocks -= 1
            self.num_promised -= 1

    def release(self, sequence: Sequence) -> None:
        """`sequence` needs no more blocks."""
        self.num_promised -= sequence.num_promised_blocks
        sequence.num_promised_blocks = 0

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise IntegrityError unless the invariant holds."""
        num_promised = sum(sequence.num_promised_blocks for sequence in running)
        if num_promised != self.num_promised or not self._cache.can_allocate(num_promised):
            free = self._cache.num_free_blocks
            raise IntegrityError(f"{self.num_promised} blocks promised, {num_promised} owed, {free} free")

    def _later_blocks(self, sequence: Sequence) -> int:
        """Blocks beyond those of the known tokens; the last token of an output is never computed."""
        most = max(sequence.num_prompt_tokens + sequence.max_output_tokens - 1, sequence.num_tokens)
        num_blocks_for = self._cache.num_blocks_for
        return num_blocks_for(most) - num_blocks_for(sequence.num_tokens)
