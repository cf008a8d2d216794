"""Which snapshots of recurrent state are free. Knows snapshot ids; never slots, tensors or whose state one holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType

from sparkinfer.engine.block_manager import IntegrityError

SnapshotId = NewType("SnapshotId", int)  # row of the host memory that keeps copies of slots


class SnapshotPool:
    """A stack of free ids; an id may change owner at once because copies run in the order of their decision."""

    def __init__(self, num_snapshots: int, bytes_per_snapshot: int = 0) -> None:
        self.bytes_per_snapshot = bytes_per_snapshot
        self.num_snapshots = num_snapshots
        self._free = [SnapshotId(snapshot) for snapshot in range(num_snapshots - 1, -1, -1)]

    @property
    def num_used(self) -> int:
        return self.num_snapshots - len(self._free)

    def allocate(self) -> SnapshotId | None:
        """A free snapshot, None when there is none."""
        return self._free.pop() if self._free else None

    def free(self, snapshot: SnapshotId) -> None:
        self._free.append(snapshot)

    def check_integrity(self, held: Iterable[SnapshotId]) -> None:
        """Raise IntegrityError unless what the owners hold and the free ids are a partition of the pool."""
        ids = [*held, *self._free]
        if len(set(ids)) != len(ids) or len(ids) != self.num_snapshots:
            raise IntegrityError(f"snapshots: {len(ids)} held or free, {len(set(ids))} known of {self.num_snapshots}")
