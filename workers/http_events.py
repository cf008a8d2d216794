"""Which answer an event belongs to, and which text worker a request was given to.

Owns the table of requests in flight of one http worker; knows no socket, ring or route.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from ipc.messages import Delta, Failed, Finished, TextEvent, Tokenized
from sparkinfer.errors import RequestError
from sparkinfer.request import RequestId


class EventSink(Protocol):
    """What takes the events of one or several requests. Once `is_done` it wants no more."""

    is_done: bool

    def feed(self, event: TextEvent) -> None: ...
    def flush(self, now: float) -> None: ...
    def fail(self, error: RequestError) -> None: ...
    def cancel(self) -> None: ...


class _InFlight:
    __slots__ = ("num_open", "sink", "worker")

    def __init__(self, sink: EventSink, worker: str, num_open: int) -> None:
        self.sink = sink
        self.worker = worker
        self.num_open = num_open


class EventRouter:
    """Requests in flight. An entry leaves with its last event, when its answer fails, or when the client leaves."""

    def __init__(self) -> None:
        self._in_flight: dict[RequestId, _InFlight] = {}
        self._num_by_worker: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def num_in_flight(self, worker: str) -> int:
        """Requests that `worker` holds for this process."""
        return self._num_by_worker.get(worker, 0)

    def add(self, request_id: RequestId, sink: EventSink, worker: str, num_choices: int = 1) -> None:
        """`worker` was given the request; num_choices Finished (or one Failed or Tokenized) will end it."""
        self._in_flight[request_id] = _InFlight(sink, worker, num_choices)
        self._num_by_worker[worker] = self.num_in_flight(worker) + 1

    def deliver(self, events: Iterable[TextEvent]) -> None:
        """All events of one wake-up, in order; every answer that got some is flushed once. Unknown ids are ignored."""
        touched: dict[EventSink, None] = {}
        in_flight = self._in_flight
        for event in events:
            entry = in_flight.get(event.request_id)
            if entry is None:
                continue
            entry.sink.feed(event)
            touched[entry.sink] = None
            if type(event) is not Delta:
                self._note_end(event, entry)
        now = time.monotonic()
        for sink in touched:
            sink.flush(now)

    def remove(self, sink: EventSink, request_ids: Iterable[RequestId]) -> list[tuple[RequestId, str]]:
        """Forget those of the requests that are still in flight; returns them with their workers, to be aborted."""
        removed = []
        for request_id in request_ids:
            entry = self._in_flight.get(request_id)
            if entry is not None and entry.sink is sink:
                self._forget(request_id, entry)
                removed.append((request_id, entry.worker))
        return removed

    def fail_worker(self, worker: str, error: RequestError) -> None:
        """Every request that `worker` held ends with `error`."""
        now = time.monotonic()
        for request_id, entry in list(self._in_flight.items()):
            if entry.worker == worker:
                self._forget(request_id, entry)
                entry.sink.fail(error)
                entry.sink.flush(now)

    def fail_all(self, error: RequestError) -> None:
        """Every request ends with `error`; the workers are not told."""
        for worker in list(self._num_by_worker):
            self.fail_worker(worker, error)

    def _note_end(self, event: TextEvent, entry: _InFlight) -> None:
        if isinstance(event, Finished):
            entry.num_open -= 1
        elif isinstance(event, Failed | Tokenized):
            entry.num_open = 0
        if entry.num_open == 0:
            self._forget(event.request_id, entry)

    def _forget(self, request_id: RequestId, entry: _InFlight) -> None:
        del self._in_flight[request_id]
        self._num_by_worker[entry.worker] -= 1
