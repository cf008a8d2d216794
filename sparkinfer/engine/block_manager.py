"""Which KV blocks are free, and how many hold each of the others. Knows block ids; never who, or what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sparkinfer.engine.sequence import BlockId


class IntegrityError(Exception):
    """A block or slot is lost, or has an owner too many: a defect of ours, never the client's."""


class BlockManager:
    """A stack of free blocks and a count of references; every operation costs O(1) per block.

    Invariant: a block is free, or its count is the number of those that hold it: sequences, each once, and the prefix
    cache. `check_integrity` compares that with what they say they hold.
    Blocks of a finished sequence may be handed out while a step that reads them is in flight, because steps run on
    the device in the order of their launch.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = [BlockId(block) for block in range(num_blocks - 1, -1, -1)]
        self._references = [0] * num_blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Hand out `num_blocks` blocks, each with one reference; the caller has asked can_allocate."""
        if num_blocks > len(self._free):
            raise IntegrityError(f"{num_blocks} blocks asked for, {len(self._free)} free")
        blocks = [self._free.pop() for _ in range(num_blocks)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, block: BlockId) -> None:
        """One more holds a block that somebody holds already."""
        if self._references[block] == 0:
            raise IntegrityError(f"block {block} is shared but free")
        self._references[block] += 1

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Give back one reference to each block; the last one frees it."""
        references = self._references
        for block in blocks:
            if references[block] == 0:
                raise IntegrityError(f"block {block} freed twice")
            references[block] -= 1
            if references[block] == 0:
                self._free.append(block)

    def check_integrity(self, block_tables: Iterable[list[BlockId]], cached: Iterable[BlockId] = ()) -> None:
        """Raise IntegrityError unless free blocks and the holders' references account for every block.

        block_tables: of all sequences that own blocks. cached: blocks that the prefix cache holds, each once.
        """
        held = Counter(cached)
        for block_table in block_tables:
            if len(set(block_table)) != len(block_table):
                raise IntegrityError("a sequence holds a block twice")
            held.update(block_table)
        for block, count in held.items():
            if count != self._references[block]:
                raise IntegrityError(f"block {block} has {self._references[block]} references, {count} owners")
        if len(held) + len(self._free) != self.num_blocks or len(set(self._free)) != len(self._free):
            raise IntegrityError(f"{len(held)} blocks owned + {len(self._free)} free != {self.num_blocks}")
