"""Sequences that wait for admission, best first. Knows their order; never blocks, slots or limits."""

from __future__ import annotations

import heapq

from sparkinfer.engine.sequence import Sequence, SequenceStatus


class WaitingQueue:
    """A heap by (priority, arrival). A sequence that finishes while it waits is skipped when it comes up.

    A preempted sequence keeps its arrival number, and so comes back before everything that arrived later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (*sequence.order, sequence))

    def head(self) -> Sequence | None:
        """The sequence to admit next, None when nobody waits."""
        while self._heap:
            sequence = self._heap[0][2]
            if sequence.status == SequenceStatus.WAITING:
                return sequence
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Remove and return what `head` returned."""
        return heapq.heappop(self._heap)[2]
