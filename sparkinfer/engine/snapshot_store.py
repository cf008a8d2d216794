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
        for slot, snapshot, restores, payload in copies:
            if payload is not None:
                self.fill(snapshot, payload)
            elif restores:
                for pool, row in zip(self._state_pool.pools, self._rows[snapshot], strict=True):
                    pool[:, slot].copy_(row, non_blocking=True)
            else:
                for pool, row in zip(self._state_pool.pools, self.row(snapshot), strict=True):
                    row.copy_(pool[:, slot], non_blocking=True)

    def fill(self, snapshot: SnapshotId, payload: bytes) -> None:
        """Make a snapshot what `to_bytes` said once."""
        self._wait()
        offset = 0
        for tensor in self.row(snapshot):
            flat = tensor.view(-1).view(torch.uint8)
            flat.copy_(torch.frombuffer(bytearray(payload[offset : offset + len(flat)]), dtype=torch.uint8))
            offset += len(flat)

    def to_bytes(self, snapshot: SnapshotId) -> bytes:
        """All that a snapshot holds."""
        self._wait()
        return b"".join(tensor.view(-1).view(torch.uint8).numpy().tobytes() for tensor in self.row(snapshot))

    def _wait(self) -> None:
        """The host is about to touch rows itself."""
        if self._state_pool.pools[0].is_cuda:
            torch.cuda.current_stream().synchronize()

    def row(self, snapshot: SnapshotId) -> list[Tensor]:
        """The host tensors of one snapshot, each [num_layers, ...]; what an unwritten one holds is undefined."""
        row = self._rows.get(snapshot)
        if row is None:
            pools = self._state_pool.pools
            row = self._rows[snapshot] = [
                torch.empty(pool[:, 0].shape, dtype=pool.dtype, pin_memory=pool.is_cuda) for pool in pools
            ]
        return row
