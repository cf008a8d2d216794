"""Owns copies of recurrent state in host memory, by snapshot id. Knows slots; never what a copy is good for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from sparkinfer.engine.scheduler_output import StateCopy
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.engine.state_pool import StatePool

# Copies on their way to the host; each takes the device memory of one slot.
MAX_STAGED = 8
PIECE_BYTES = 4 << 20  # of a copy to the host: a step's tokens take the same way and wait for one piece at most


class SnapshotStore:
    """Rows come into being when first written and are kept for reuse; the Scheduler bounds their number.

    Used by the thread that runs steps, in launch order. On an accelerator a save copies within the device on the
    stream of the forward, and from there to pinned memory on a stream of its own, beside the forwards that follow.
    """

    def __init__(self, state_pool: StatePool) -> None:
        self._state_pool = state_pool
        self._rows: dict[SnapshotId, list[Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None
        self._in_flight: deque[torch.cuda.Event] = deque()  # ends of saves, oldest first

    def copy(self, copies: Iterable[StateCopy]) -> None:
        """Save and restore, in order."""
        for slot, snapshot, restores, payload in copies:
            if payload is not None:
                self.fill(snapshot, payload)
            elif restores:
                self._order_behind_saves()
                # Undefined where the step that should have saved it failed; what resumes from it ends for that.
                for pool, row in zip(self._state_pool.pools, self.row(snapshot), strict=True):
                    pool[:, slot].copy_(row, non_blocking=True)
            else:
                self._save(self.row(snapshot), slot)

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

    def _save(self, row: list[Tensor], slot: SlotId) -> None:
        pools = self._state_pool.pools
        if not pools[0].is_cuda:
            for pool, tensor in zip(pools, row, strict=True):
                tensor.copy_(pool[:, slot])
            return
        forward = torch.cuda.current_stream()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        if len(self._in_flight) >= MAX_STAGED:
            forward.wait_event(self._in_flight.popleft())
        staged = [pool[:, slot].clone() for pool in pools]
        self._stream.wait_stream(forward)
        with torch.cuda.stream(self._stream):
            for source, tensor in zip(staged, row, strict=True):
                num_layers = max(1, PIECE_BYTES // source[0].nbytes)
                for piece, target in zip(torch.split(source, num_layers), torch.split(tensor, num_layers)):
                    target.copy_(piece, non_blocking=True)
                source.record_stream(self._stream)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # likewise
            event.record(self._stream)
        self._in_flight.append(event)

    def _order_behind_saves(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _wait(self) -> None:
        """The host is about to touch rows itself."""
        if self._state_pool.pools[0].is_cuda:
            self._order_behind_saves()
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
