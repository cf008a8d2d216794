"""The recurrent state that running sequences keep of their answers, for whoever goes on from there.

Knows positions and snapshots; never tokens, blocks or slots.
"""

from __future__ import annotations

from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.prefix_node import PrefixNode
from sparkinfer.engine.sequence import Sequence
from sparkinfer.engine.snapshot_pool import SnapshotId


class RollingSnapshots:
    """A state at each block's end takes the place of the one before, once it is certain that the sequence came so far.

    All together take half of the snapshots at most.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._held: dict[Sequence, list[tuple[int, SnapshotId]]] = {}  # one or two each, by position
        self._num_held = 0
        self._uncertain: dict[Sequence, None] = {}  # have two

    @property
    def snapshots(self) -> list[SnapshotId]:
        """All that are held."""
        return [snapshot for held in self._held.values() for _, snapshot in held]

    def renew(self, sequence: Sequence) -> SnapshotId | None:
        """Where the state at the end of what is computed is to be saved; None: nowhere."""
        held = self._held.get(sequence, [])
        if len(held) == 2:  # steps are far ahead of what is known
            snapshot: SnapshotId | None = held.pop(0)[1]
        else:
            snapshot = self._take()
        if snapshot is None:
            return None
        held.append((sequence.num_computed_tokens, snapshot))
        self._held[sequence] = held
        if len(held) == 2:
            self._uncertain[sequence] = None
        return snapshot

    def settle(self) -> None:
        """Give back older states of sequences whose newest one is of known tokens."""
        for sequence in [member for member in self._uncertain if member.num_tokens >= self._held[member][1][0]]:
            del self._uncertain[sequence]
            self._free(self._held[sequence].pop(0)[1])

    def end(self, sequence: Sequence, path: dict[int, PrefixNode]) -> None:
        """The sequence has ended or is preempted: the newest state of its tokens goes to the tree.

        path: nodes of its tokens by the position at their end; empty: nothing of it may be used again
        """
        self._uncertain.pop(sequence, None)
        is_kept = False
        for position, snapshot in reversed(self._held.pop(sequence, [])):
            if is_kept or position not in path:
                self._free(snapshot)
                continue
            self._num_held -= 1
            self._cache.attach(path[position], snapshot)
            is_kept = True

    def _take(self) -> SnapshotId | None:
        snapshots = self._cache.snapshots
        if snapshots is None or 2 * self._num_held + 1 >= snapshots.num_snapshots:
            return None
        snapshot = self._cache.allocate_snapshot()
        self._num_held += snapshot is not None
        return snapshot

    def _free(self, snapshot: SnapshotId) -> None:
        assert self._cache.snapshots is not None
        self._cache.snapshots.free(snapshot)
        self._num_held -= 1
