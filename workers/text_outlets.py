"""The text worker's way out: events collected in a turn, one frame and one wake-up for each http worker.

Knows rings and events; never how they came about.
"""

from __future__ import annotations

from ipc.backlog import BackloggedWriter
from ipc.codec import ENCODER
from ipc.messages import Failed, TextEvent
from sparkinfer.errors import RequestError
from sparkinfer.request import RequestId


class HttpOutlets:
    """Rings to the http workers, by index. Used by the text worker's event loop alone."""

    def __init__(self, writers: dict[str, BackloggedWriter]) -> None:
        self._writers = {int(name.partition("-")[2]): writer for name, writer in writers.items()}
        self._events: dict[int, list[TextEvent]] = {}

    def emit(self, http_index: int, event: TextEvent) -> None:
        """Keep an event for the next `publish`."""
        self._events.setdefault(http_index, []).append(event)

    def publish(self) -> list[int]:
        """Send what was kept and what did not fit before; returns the http workers that lost frames."""
        for http_index, events in self._events.items():
            self._push(self._writers[http_index], events)
        self._events.clear()
        for writer in self._writers.values():
            writer.ring()
        return [http_index for http_index, writer in self._writers.items() if writer.overflowed]

    def _push(self, writer: BackloggedWriter, events: list[TextEvent]) -> None:
        try:
            writer.push(ENCODER.encode(events))
        except ValueError:  # larger than the whole ring
            if len(events) > 1:
                self._push(writer, events[: len(events) // 2])
                self._push(writer, events[len(events) // 2 :])
                return
            error = RequestError(413, "the answer is too large to be delivered", code="answer_too_large")
            writer.push(ENCODER.encode([failed(events[0].request_id, error)]))

    def reset(self, http_index: int) -> None:
        """The http worker is gone or was given up: forget what waits for it."""
        self._events.pop(http_index, None)
        self._writers[http_index].reset()


def failed(request_id: RequestId, error: RequestError) -> Failed:
    """The event that ends a request with `error`."""
    return Failed(request_id, error.status, error.message, error.param, error.code, error.details)
