"""What moves between host and device memory before a step's forward. Knows the order; never why anything moves."""

from __future__ import annotations

from sparkinfer.engine.block_bytes import BlockBytes
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler_output import SchedulerOutput
from sparkinfer.engine.snapshot_store import SnapshotStore
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.engine.swap_store import SwapStore


class HostCopies:
    """Snapshots of the prefix cache and swapped-out sequences; used by the thread that runs steps."""

    def __init__(self, kv_cache: KVCache, state_pool: StatePool) -> None:
        self._snapshots = SnapshotStore(state_pool)
        self._blocks = BlockBytes(kv_cache)
        self._swap_store = SwapStore(kv_cache, state_pool)

    def run(self, output: SchedulerOutput) -> None:
        """In the order that SchedulerOutput asks for."""
        for block, snapshot, keep in output.disk_saves:
            if block is not None:
                keep(self._blocks.to_bytes(block))
            if snapshot is not None:
                keep(self._snapshots.to_bytes(snapshot))
        self._swap_store.drop(output.swap_drops)
        self._swap_store.swap_out(output.swap_outs)
        for block, payload in output.block_loads:
            self._blocks.fill(block, payload)
        self._snapshots.copy(output.state_copies)
        self._swap_store.swap_in(output.swap_ins)
