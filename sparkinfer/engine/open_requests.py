"""Requests that have not ended, with their choices. Knows who belongs together; never who runs or waits."""

from __future__ import annotations

from sparkinfer.engine.block_manager import IntegrityError
from sparkinfer.engine.sequence import Sequence
from sparkinfer.request import RequestId


class OpenRequests:
    """Choices by request; a request is open as long as one of them is."""

    def __init__(self) -> None:
        self._choices: dict[RequestId, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of one new request."""
        self._choices[sequences[0].request_id] = list(sequences)

    def remove(self, sequence: Sequence) -> None:
        """This choice has ended."""
        choices = self._choices[sequence.request_id]
        choices.remove(sequence)
        if not choices:
            del self._choices[sequence.request_id]

    def choices(self, request_id: RequestId) -> list[Sequence]:
        """What is left of a request; empty when it is unknown or over."""
        return list(self._choices.get(request_id, ()))

    def of_worker(self, reply_to: int) -> list[RequestId]:
        """Requests whose results go to `reply_to`."""
        return [request_id for request_id, choices in self._choices.items() if choices[0].reply_to == reply_to]

    def check_integrity(self, num_running: int, num_waiting: int) -> None:
        """Raise IntegrityError unless every open sequence runs or waits."""
        num_open = sum(map(len, self._choices.values()))
        if num_open != num_running + num_waiting:
            raise IntegrityError(f"{num_open} sequences open, {num_running} run, {num_waiting} wait")
