"""Sequences that wait for a slot and blocks, best first. Knows their order; never blocks, slots or limits."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from sparkinfer.engine.fair_share import FairShare
from sparkinfer.engine.sequence import Sequence, SequenceStatus


class _Level:
    """Waiting sequences of one priority."""

    def __init__(self) -> None:
        self.preempted: list[tuple[int, Sequence]] = []        # heap by arrival
        self.newcomers: dict[int, OrderedDict[Sequence, None]] = {}  # by client, in order of arrival; none is empty

    def head(self, fair_share: FairShare) -> Sequence | None:
        while self.preempted:
            if self.preempted[0][1].status == SequenceStatus.WAITING:
                return self.preempted[0][1]
            heapq.heappop(self.preempted)
        if not self.newcomers:
            return None
        heads = (next(iter(queue)) for queue in self.newcomers.values())
        return min(heads, key=lambda head: (fair_share.served(head.client_id), head.arrival_number))


class WaitingQueue:
    """Order: priority; then those that were preempted, by arrival; then the least served client; then arrival.

    What was preempted comes back before any newcomer: its client watches a stream that stands still.
    One that `is_put_off` when it comes up is set aside until it is not, and is then the first of its priority.
    """

    def __init__(self, is_put_off: Callable[[Sequence], bool]) -> None:
        self.fair_share = FairShare()
        self._is_put_off = is_put_off
        self._aside: list[Sequence] = []
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []                       # sorted keys of _levels

    def push(self, sequence: Sequence) -> None:
        level = self._levels.get(sequence.priority)
        if level is None:
            level = self._levels[sequence.priority] = _Level()
            insort(self._priorities, sequence.priority)
        if sequence.num_preemptions:
            heapq.heappush(level.preempted, (sequence.arrival_number, sequence))
        else:
            level.newcomers.setdefault(sequence.client_id, OrderedDict())[sequence] = None

    def head(self) -> Sequence | None:
        """The sequence to admit next, None when nobody waits who is not set aside."""
        best = self._head_aside()
        while self._priorities:
            head = self._levels[self._priorities[0]].head(self.fair_share)
            if head is None:
                del self._levels[self._priorities.pop(0)]
            elif best is not None and best.priority <= head.priority:
                return best
            elif self._is_put_off(head):
                self.remove(head)
                self._aside.append(head)
            else:
                return head
        return best

    def remove(self, sequence: Sequence) -> None:
        """Take out what `head` returned, or one that is about to end; of those, preempted ones go when they come up."""
        if sequence in self._aside:
            self._aside.remove(sequence)
            return
        level = self._levels[sequence.priority]
        if sequence.num_preemptions:
            if level.preempted[0][1] is sequence:
                heapq.heappop(level.preempted)
            return
        queue = level.newcomers[sequence.client_id]
        del queue[sequence]
        if not queue:
            del level.newcomers[sequence.client_id]

    def _head_aside(self) -> Sequence | None:
        """The best of those set aside whose time has come."""
        ready = (sequence for sequence in self._aside if not self._is_put_off(sequence))
        return min(ready, key=lambda sequence: sequence.priority, default=None)
