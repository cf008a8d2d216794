"""Which KV blocks are free. Knows block ids; never who owns one or what is in it."""

from __future__ import annotations

from collections.abc import Iterable

from sparkinfer.engine.sequence import BlockId


class IntegrityError(Exception):
    """A block or slot is lost, or has two owners: a defect of ours, never the client's."""


class BlockManager:
    """A stack of free blocks; every operation costs O(1) per block.

    Invariant: a block is free (once) or handed out (once); `check_integrity` compares that with what owners hold.
    Blocks of a finished sequence may be handed out while a step that reads them is in flight, because steps run on
    the device in the order of their launch.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = [BlockId(block) for block in range(num_blocks - 1, -1, -1)]
        self._is_free = bytearray(b"\x01") * num_blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Hand out `num_blocks` blocks; the caller has asked can_allocate."""
        if num_blocks > len(self._free):
            raise IntegrityError(f"{num_blocks} blocks asked for, {len(self._free)} free")
        blocks = [self._free.pop() for _ in range(num_blocks)]
        for block in blocks:
            self._is_free[block] = 0
        return blocks

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Take blocks back."""
        for block in blocks:
            if self._is_free[block]:
                raise IntegrityError(f"block {block} freed twice")
            self._is_free[block] = 1
            self._free.append(block)

    def check_integrity(self, block_tables: Iterable[list[BlockId]]) -> None:
        """Raise IntegrityError unless the owners' tables and the free blocks are a partition of the pool."""
        owned: set[BlockId] = set()
        num_owned = 0
        for block_table in block_tables:
            owned.update(block_table)
            num_owned += len(block_table)
        if num_owned != len(owned):
            raise IntegrityError(f"{num_owned - len(owned)} blocks have two owners")
        if any(self._is_free[block] for block in owned):
            raise IntegrityError("a block is owned and free")
        if num_owned + len(self._free) != self.num_blocks:
            raise IntegrityError(f"{num_owned} blocks owned + {len(self._free)} free != {self.num_blocks}")
