"""Blocks of keys and values as bytes, for files. Knows rows; never whose they are or where the bytes go."""

from __future__ import annotations

import torch

from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.sequence import BlockId


class BlockBytes:
    """Used by the thread that runs steps, between them; on an accelerator it waits for what was launched before."""

    def __init__(self, kv_cache: KVCache) -> None:
        self._pools = [pool.view(kv_cache.num_blocks, -1) for pool in kv_cache.pools]

    def to_bytes(self, block: BlockId) -> bytes:
        """All layers of one block, keys, values and scales."""
        return b"".join(pool[block].view(torch.uint8).cpu().numpy().tobytes() for pool in self._pools)

    def fill(self, block: BlockId, payload: bytes) -> None:
        """Make a block what `to_bytes` said once."""
        offset = 0
        for pool in self._pools:
            row = pool[block].view(torch.uint8)
            row.copy_(torch.frombuffer(bytearray(payload[offset : offset + len(row)]), dtype=torch.uint8))
            offset += len(row)
