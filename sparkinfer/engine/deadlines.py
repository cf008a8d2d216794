"""How long a request may wait and take. Knows times; never blocks, slots or queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.errors import RequestError

ANNOUNCE_AFTER_S = 10.0  # waits that end sooner end with a real status; below the 15 s of the first keep-alive comment


class Deadlines:
    """Arrivals in order, once for each thing that age brings about. Sequences that have ended are skipped."""

    def __init__(self, request_timeout_s: float, admission_wait_s: float) -> None:
        """request_timeout_s: arrival to end, 0 for any time. admission_wait_s: arrival to start, 0 for no waiting."""
        self._request_timeout_s = request_timeout_s
        self._admission_wait_s = admission_wait_s
        self._open: deque[Sequence] = deque()
        self._not_started: deque[Sequence] = deque()
        self._not_announced: deque[Sequence] = deque()

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of a request that begins to wait."""
        if self._request_timeout_s:
            self._open.extend(sequences)
        self._not_started.append(sequences[0])
        self._not_announced.append(sequences[0])

    def timed_out(self, now: float) -> Iterator[tuple[Sequence, RequestError]]:
        """Sequences that are too old, whatever they do."""
        while self._open:
            oldest = self._open[0]
            if oldest.status != SequenceStatus.FINISHED and now - oldest.arrived_at < self._request_timeout_s:
                return
            message = f"The request took longer than {self._request_timeout_s:g} s."
            yield self._open.popleft(), RequestError(504, message, code="request_timeout")

    def waited_out(self, now: float, has_room: bool, num_tried: int) -> Iterator[tuple[Sequence, RequestError]]:
        """Choice 0 of requests that waited long enough for a start, oldest first.

        has_room:   admission ended for lack of tokens in the step, not of blocks or slots
        num_tried:  arrivals before this number have had a chance to start
        """
        message = f"No capacity became free within {self._admission_wait_s:g} s; try again later."
        while self._not_started:
            oldest = self._not_started[0]
            if oldest.status != SequenceStatus.FINISHED and not oldest.is_started:
                is_early = now - oldest.arrived_at < self._admission_wait_s
                if is_early or oldest.arrival_number >= num_tried or (has_room and not self._admission_wait_s):
                    return
                yield oldest, RequestError(429, message, code="no_capacity")
            self._not_started.popleft()

    def unannounced(self, now: float) -> Iterator[Sequence]:
        """Choice 0 of requests that go on waiting and whose clients should hear so."""
        while self._not_announced:
            oldest = self._not_announced[0]
            if oldest.status == SequenceStatus.WAITING and not oldest.is_announced:
                if now - oldest.arrived_at < ANNOUNCE_AFTER_S:
                    return
                yield oldest
            self._not_announced.popleft()
