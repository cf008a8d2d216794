"""Requests that have not ended, with their choices. Knows who belongs together and counts them; never who is next."""

from __future__ import annotations

from sparkinfer.engine.block_manager import IntegrityError
from sparkinfer.engine.sequence import Sequence, SequenceStatus
from sparkinfer.request import RequestId


class OpenRequests:
    """Choices by request; a request is open as long as one of them is, and waits as long as none of them runs."""

    def __init__(self) -> None:
        self.num_waiting_sequences = 0
        self.num_waiting = 0                                 # requests
        self._choices: dict[RequestId, list[Sequence]] = {}
        self._num_running: dict[RequestId, int] = {}         # choices

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of one new request, which wait."""
        request_id = sequences[0].request_id
        self._choices[request_id] = list(sequences)
        self._num_running[request_id] = 0
        self.num_waiting_sequences += len(sequences)
        self.num_waiting += 1

    def move(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Give an open sequence another status; with FINISHED it is open no more."""
        request_id, choices = sequence.request_id, self._choices[sequence.request_id]
        self.num_waiting_sequences += (status == SequenceStatus.WAITING) - (sequence.status == SequenceStatus.WAITING)
        self.num_waiting -= not self._num_running[request_id]
        self._num_running[request_id] += (
            (status == SequenceStatus.RUNNING) - (sequence.status == SequenceStatus.RUNNING)
        )
        sequence.status = status
        if status == SequenceStatus.FINISHED:
            choices.remove(sequence)
        if choices:
            self.num_waiting += not self._num_running[request_id]
        else:
            del self._choices[request_id], self._num_running[request_id]

    def choices(self, request_id: RequestId) -> list[Sequence]:
        """What is left of a request; empty when it is unknown or over."""
        return list(self._choices.get(request_id, ()))

    def of_worker(self, reply_to: int) -> list[RequestId]:
        """Requests whose results go to `reply_to`."""
        return [request_id for request_id, choices in self._choices.items() if choices[0].reply_to == reply_to]

    def check_integrity(self, num_running: int) -> None:
        """Raise IntegrityError unless the counts are those of the sequences, `num_running` of which run."""
        statuses = [[sequence.status for sequence in choices] for choices in self._choices.values()]
        counted = (
            sum(of_one.count(SequenceStatus.RUNNING) for of_one in statuses),
            sum(of_one.count(SequenceStatus.WAITING) for of_one in statuses),
            sum(SequenceStatus.RUNNING not in of_one for of_one in statuses),
        )
        if counted != (num_running, self.num_waiting_sequences, self.num_waiting):
            raise IntegrityError(
                f"{counted[0]} sequences run, {counted[1]} wait, {counted[2]} requests wait; counted {num_running}, "
                f"{self.num_waiting_sequences}, {self.num_waiting}"
            )
