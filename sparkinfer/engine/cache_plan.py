"""Sizes and makes the cache of one engine. Knows bytes and settings; never tensors or sequences."""

from __future__ import annotations

from sparkinfer.config import PrefixCacheConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.memory_plan import GIB
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.snapshot_pool import SnapshotPool
from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.errors import ConfigError

MIB = 1 << 20

# Of the host memory that is free; the rest is left to whatever else runs there.
MAX_SHARE_OF_FREE_MEMORY = 0.5


def num_snapshots_within(config: PrefixCacheConfig, bytes_per_snapshot: int, free: int) -> int:
    """How many snapshots of recurrent state may be kept, with `free` bytes of host memory to be had.

    >>> num_snapshots_within(PrefixCacheConfig(host_mib=1024), 64 * MIB, 8192 * MIB)
    16
    >>> num_snapshots_within(PrefixCacheConfig(host_mib=1024), 64 * MIB, 512 * MIB)
    4
    """
    num_bytes = min(config.host_mib * MIB, int(free * MAX_SHARE_OF_FREE_MEMORY))
    most = num_bytes // bytes_per_snapshot
    return min(most, config.max_entries) if config.max_entries else most


def make_cache(
    config: PrefixCacheConfig, *, num_blocks: int, block_size: int, bytes_per_snapshot: int, free: int,
    bytes_per_block: int = 0, swap_gib: float = 0.0, prompt_grid: int = 0,
) -> CacheManager:
    """The manager of a pool of blocks, with the prefix cache over it if that is enabled, and swap space if there is.

    bytes_per_snapshot:  recurrent state of one sequence, 0 for models without any
    free:                bytes of host memory that may be had
    prompt_grid:         as CacheManager has it
    Raises ConfigError when the swap space cannot be held.
    """
    if swap_gib * GIB > free:
        raise ConfigError(f"[scheduler] swap_gib = {swap_gib:g}: only {free / GIB:.1f} GiB of host memory are free")
    swap_space = SwapSpace(int(swap_gib * GIB), bytes_per_block, bytes_per_snapshot)
    free -= int(swap_gib * GIB)
    block_manager = BlockManager(num_blocks, block_size)
    if not config.enabled:
        return CacheManager(block_manager, swap_space=swap_space, prompt_grid=prompt_grid)
    snapshots = None
    if bytes_per_snapshot:
        snapshots = SnapshotPool(num_snapshots_within(config, bytes_per_snapshot, free), bytes_per_snapshot)
    return CacheManager(block_manager, PrefixCache(config, block_manager, snapshots), swap_space, prompt_grid)
