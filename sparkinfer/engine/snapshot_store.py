"""Owns copies of recurrent state in host memory, by snapshot id. Knows slots; never what a copy is good for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sparkinfer.engine.scheduler_output import StateCopy
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.engine.state_pool import StatePool


class SnapshotStore:
    """Rows come into being when first written and are kept for reuse; the Scheduler bounds their number.

    Used by the thread that runs steps, in launch order. On an accelerator the copies are asynchronous, to pinned
    memory and on the stream of the forward, which orders them with it and with each other.
    """

    def __init__(self, state_pool: StatePool) -> None:
        self._state_pool = state_pool
        self._rows: dict[SnapshotId, list[Tensor]] = {}

    def copy(self, copies: Iterable[StateCopy]) -> None:
        """Save and restore, in order."""
        for slot, snapshot, restores in copies:
            if restores:
                for pool, row in zip(self._state_pool.pools, self._rows[snapshot], strict=True):
                    pool[:, slot].copy_(row, non_blocking=True)
            else:
                for pool, row in zip(self._state_pool.pools, self.row(snapshot), strict=True):
                    row.copy_(pool[:, slot], non_blocking=True)

    def row(self, snapshot: SnapshotId) -> list[Tensor]:
        """The host tensors of one snapshot, each [num_layers, ...]; what an unwritten one holds is undefined."""
        row = self._rows.get(snapshot)
        if row is None:
            pools = self._state_pool.pools
            row = self._rows[snapshot] = [
                torch.empty(pool[:, 0].shape, dtype=pool.dtype, pin_memory=pool.is_cuda) for pool in pools
            ]
        return row
