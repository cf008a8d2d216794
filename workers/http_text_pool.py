"""The text workers as an http worker sees them: somewhere to submit to, something that may die.

Owns the choice of worker and the aborts; never looks into a request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ipc.codec import TEXT_EVENTS
from ipc.messages import Abort, Count, Detokenize, Submit
from sparkinfer.errors import RequestError
from sparkinfer.request import OutputFormat, Prompt, Request, RequestId, ToolPolicy
from workers.http_answer import Answer, TokenAnswer
from workers.http_events import EventRouter
from workers.process import Peers

log = logging.getLogger("http")


class PromptQuestion(NamedTuple):
    """A prompt, and what else of a request changes how it is rendered."""

    prompt: Prompt
    tool_policy: ToolPolicy = ToolPolicy()
    output_format: OutputFormat | None = None


class TextPool(Protocol):
    """What the routes need of the text workers."""

    def submit(self, answer: Answer, requests: Sequence[Request]) -> None:
        """Start all requests, whose events will reach `answer`; RequestError(503) when none can be started."""

    def encode(
        self, answer: TokenAnswer, request_id: RequestId, question: PromptQuestion, *, with_text: bool,
        with_pieces: bool,
    ) -> None:
        """Render and tokenise only; RequestError(503) as `submit`."""

    def decode(
        self, answer: TokenAnswer, request_id: RequestId, token_ids: tuple[int, ...], skip_special: bool
    ) -> None:
        """The text of ids; RequestError(503) as `submit`."""

    def abandon(self, answer: Answer, requests: Sequence[Request]) -> None:
        """Abort what is still in flight; nothing happens when all of it has ended."""


class LiveTextPool:
    """The pool over ZeroMQ outboxes and rings. Each request goes to the text worker that holds the fewest of ours."""

    def __init__(self, http_index: int, generation: int, peers: Peers) -> None:
        """http_index, generation: this process's own."""
        self.router = EventRouter()
        self._http_index = http_index
        self._generation = generation
        self._peers = peers

    def submit(self, answer: Answer, requests: Sequence[Request]) -> None:
        try:
            for request in requests:
                worker = self._least_loaded()
                self._send(worker, Submit(request, self._http_index, self._generation))
                self.router.add(request.request_id, answer, worker, request.n)
        except RequestError:
            self.abandon(answer, requests)
            raise

    def encode(
        self, answer: TokenAnswer, request_id: RequestId, question: PromptQuestion, *, with_text: bool,
        with_pieces: bool,
    ) -> None:
        prompt, policy, output_format = question
        count = Count(request_id, prompt, self._http_index, with_text, with_pieces, policy, output_format)
        self._ask(answer, count)

    def decode(
        self, answer: TokenAnswer, request_id: RequestId, token_ids: tuple[int, ...], skip_special: bool
    ) -> None:
        self._ask(answer, Detokenize(request_id, token_ids, self._http_index, skip_special))

    def abandon(self, answer: Answer, requests: Sequence[Request]) -> None:
        for request_id, worker in self.router.remove(answer, (request.request_id for request in requests)):
            outbox = self._peers.outbox(worker)
            if outbox is not None and not outbox.send(Abort(request_id)):
                log.error("%s takes no messages: the abort of request %d is lost", worker, request_id)

    def on_frames(self, _writer: str, frames: Sequence[bytes]) -> None:
        """Everything a text worker published since the last wake-up."""
        if len(frames) == 1:
            self.router.deliver(TEXT_EVENTS.decode(frames[0]))
        else:
            self.router.deliver([event for frame in frames for event in TEXT_EVENTS.decode(frame)])

    def on_worker_down(self, worker: str) -> None:
        """Its requests are lost; their clients are told to try again."""
        error = RequestError(503, "The worker that handled this request stopped; please retry", code="worker_lost")
        self.router.fail_worker(worker, error)

    def _ask(self, answer: TokenAnswer, question: Count | Detokenize) -> None:
        worker = self._least_loaded()
        self._send(worker, question)
        self.router.add(question.request_id, answer, worker)

    def _least_loaded(self) -> str:
        workers = self._peers.names("text")
        if not workers:
            raise RequestError(503, "No text worker is ready; please retry", code="not_ready")
        return min(workers, key=self.router.num_in_flight)

    def _send(self, worker: str, message: Submit | Count | Detokenize) -> None:
        outbox = self._peers.outbox(worker)
        if outbox is None or not outbox.send(message):
            raise RequestError(503, "The server is overloaded; please retry", code="overloaded")
