"""How long a request may wait and take. Knows times; never blocks, slots or queues."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.errors import RequestError

ANNOUNCE_AFTER_S = 10.0  # waits that end sooner end with a real status; below the 15 s of the first keep-alive comment


class Deadlines:
    """Arrivals in order, once for each thing that age brings about; nothing is held of sequences that have ended."""

    def __init__(self, request_timeout_s: float, admission_wait_s: float) -> None:
        """request_timeout_s: arrival to end, 0 for any time. admission_wait_s: arrival to start, 0 for no waiting."""
        self._request_timeout_s = request_timeout_s
        self._admission_wait_s = admission_wait_s
        self._open: OrderedDict[Sequence, None] = OrderedDict()
        self._not_started: OrderedDict[Sequence, None] = OrderedDict()
        self._not_announced: OrderedDict[Sequence, None] = OrderedDict()

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of a request that begins to wait."""
        if self._request_timeout_s:
            self._open.update(dict.fromkeys(sequences))
        self._not_started[sequences[0]] = None
        self._not_announced[sequences[0]] = None

    def discard(self, sequence: Sequence) -> None:
        """A sequence has ended, whether or not it was ever added."""
        for arrivals in (self._open, self._not_started, self._not_announced):
            arrivals.pop(sequence, None)

    def timed_out(self, now: float) -> Iterator[tuple[Sequence, RequestError]]:
        """Sequences that are too old, whatever they do."""
        while self._open:
            oldest = next(iter(self._open))
            if now - oldest.arrived_at < self._request_timeout_s:
                return
            del self._open[oldest]
            message = f"The request took longer than {self._request_timeout_s:g} s."
            yield oldest, RequestError(504, message, code="request_timeout")

    def waited_out(self, now: float, has_room: bool, num_tried: int) -> Iterator[tuple[Sequence, RequestError]]:
        """Choice 0 of requests that waited long enough for a start, oldest first.

        has_room:   admission ended for lack of tokens in the step, not of blocks or slots
        num_tried:  arrivals before this number have had a chance to start
        """
        message = f"No capacity became free within {self._admission_wait_s:g} s; try again later."
        while self._not_started:
            oldest = next(iter(self._not_started))
            if not oldest.is_started:
                is_early = now - oldest.arrived_at < self._admission_wait_s
                if is_early or oldest.arrival_number >= num_tried or (has_room and not self._admission_wait_s):
                    return
            del self._not_started[oldest]
            if not oldest.is_started:
                yield oldest, RequestError(429, message, code="no_capacity")

    def unannounced(self, now: float) -> Iterator[Sequence]:
        """Choice 0 of requests that go on waiting and whose clients should hear so."""
        while self._not_announced:
            oldest = next(iter(self._not_announced))
            is_waiting = oldest.status == SequenceStatus.WAITING and not oldest.is_announced
            if is_waiting and now - oldest.arrived_at < ANNOUNCE_AFTER_S:
                return
            del self._not_announced[oldest]
            if is_waiting:
                yield oldest
