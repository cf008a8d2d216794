"""The text worker: renders and tokenises prompts, turns token records into text, finds stop strings.

Owns the state of every request it was given, from Submit to the last event; never a client socket, never torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ipc.codec import TEXT_INBOX
from ipc.messages import (
    Abort,
    Count,
    Detokenize,
    PeerDown,
    PeerUp,
    SequenceFinished,
    SequenceQueued,
    Submit,
)
from ipc.status_board import BootPhase, TextGauge
from ipc.token_frame import EVENTS, TOKENS, unpack, unpack_events
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, Request, RequestId
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.prompt_encoder import EncodedPrompt, PromptEncoder
from workers import process
from workers.process import WorkerContext
from workers.text_constraints import Constraint, Constraints
from workers.text_count import answer
from workers.text_encoding_thread import EncodingThread
from workers.text_outlets import HttpOutlets, failed
from workers.text_request import OpenRequest
from workers.text_scores import scores_of

log = logging.getLogger("text")

GPU = "gpu-0"
FLUSH_S = 0.05


class TextWorker:
    """All requests of one text process. Runs on one event loop; only prompt encoding leaves it, for one thread."""

    def __init__(self, context: WorkerContext, encoder: PromptEncoder) -> None:
        self._context = context
        self._encoder = encoder
        self._requests: dict[RequestId, OpenRequest] = {}
        self._outlets = HttpOutlets(context.writers)
        self._thread = EncodingThread()
        self._loop = asyncio.get_running_loop()
        self._encoding: set[asyncio.Future[None]] = set()
        self.constraints = Constraints(context, encoder.tokenizer, self._fail)
        self._max_model_len = 0  # the scheduler's, known once it is up

    # Messages

    def on_messages(self, messages: list[Any]) -> None:
        """Handle a batch from the inbox and publish what came of it."""
        for message in messages:
            if isinstance(message, Submit):
                self._submit(message)
            elif isinstance(message, Abort):
                self._abort(message.request_id)
            elif isinstance(message, Count | Detokenize):
                self._spawn(self._answer(message), message.request_id, message.reply_to)
            elif isinstance(message, PeerUp):
                self._peer_up(message)
            elif isinstance(message, PeerDown):
                self._peer_down(message)
        self.publish()

    def _submit(self, message: Submit) -> None:
        request = message.request
        if self._context.peers.is_dead(f"http-{message.reply_to}", message.generation):
            return
        self._requests[request.request_id] = OpenRequest(request, message.reply_to)
        self._spawn(self._encode_and_generate(request), request.request_id, message.reply_to)

    def _spawn(self, coroutine: Any, request_id: RequestId, reply_to: int) -> None:
        task = self._loop.create_task(coroutine)
        self._encoding.add(task)
        task.add_done_callback(functools.partial(self._on_encoded, request_id, reply_to))

    def _on_encoded(self, request_id: RequestId, reply_to: int, task: asyncio.Task[None]) -> None:
        """The boundary of one prompt: a bug that a template or a text brings out costs its own request an answer.

        Here and not in an `except`: a panic of the tokenizer's native code is no Exception.
        """
        self._encoding.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("request %d: its prompt could not be encoded", request_id, exc_info=error)
        self._abort(request_id)
        self._outlets.emit(reply_to, failed(request_id, RequestError(500, "the prompt could not be encoded")))
        self.publish()

    async def _encode_and_generate(self, request: Request) -> None:
        try:
            if self._context.peers.outbox(GPU) is None:
                raise _engine_unavailable()
            encoded = await self._thread.encode(request, self._encode_if_open, request)
            if encoded is not None:
                is_open = functools.partial(self._requests.__contains__, request.request_id)
                constraint = await self.constraints.prepare(request, encoded, is_open)
                self._generate(request, encoded, constraint)
        except RequestError as error:
            self._fail(request.request_id, error)
        self.publish()

    def _encode_if_open(self, request: Request) -> EncodedPrompt | None:
        """On the encoding thread, if not at once; None when the request was aborted while it stood in line."""
        if request.request_id not in self._requests:
            return None
        return self._encoder.encode_request(request, self._max_model_len)

    def _generate(self, request: Request, encoded: EncodedPrompt, constraint: Constraint) -> None:
        """Hand an encoded prompt to the scheduler; nothing happens if the request was aborted meanwhile."""
        open_request = self._requests.get(request.request_id)
        if open_request is None:
            self.constraints.give_back(constraint)
            return
        open_request.start(encoded, self._encoder.tokenizer, constraint.approximations)
        self.constraints.begin(request.request_id, constraint, len(encoded.token_ids))
        message = open_request.generate(self._context.spec, list(constraint.mask_rows))
        outbox = self._context.peers.outbox(GPU)
        if outbox is None or not outbox.send(message):
            raise _engine_unavailable()

    async def _answer(self, message: Count | Detokenize) -> None:
        try:
            tokenized = await self._thread.run(answer, self._encoder, message)
            self._outlets.emit(message.reply_to, tokenized)
        except RequestError as error:
            self._outlets.emit(message.reply_to, failed(message.request_id, error))
        self.publish()

    def _abort(self, request_id: RequestId, choice: int = -1) -> None:
        """Stop the generation of a request (and forget it), or of one choice of it."""
        self.constraints.end(request_id, choice)
        if choice < 0:
            open_request = self._requests.pop(request_id, None)
            if open_request is None:
                return
        outbox = self._context.peers.outbox(GPU)
        if outbox is not None:
            outbox.send(Abort(request_id, choice))

    def _peer_up(self, message: PeerUp) -> None:
        self._context.peers.up(message)
        info = self._context.board.read_service_info()
        if message.name == GPU and info is not None:
            self._max_model_len = msgspec.json.decode(info)["max_model_len"]

    def _peer_down(self, message: PeerDown) -> None:
        if not self._context.peers.down(message):
            return
        if message.name == GPU:
            error = RequestError(503, "the engine stopped while it worked on this request", code="engine_unavailable")
            for request_id, open_request in list(self._requests.items()):
                if open_request.encoded is not None:
                    self._fail(request_id, error)
        elif message.name.startswith("http-"):
            self._drop_requests_of(int(message.name.partition("-")[2]))

    # Token records

    def on_frames(self, _writer: str, frames: Sequence[bytes]) -> None:
        """Handle what the scheduler published since the last wake-up and pass the text on, once per http worker."""
        touched: dict[int, tuple[OpenRequest, RequestId, int]] = {}
        requests = self._requests
        for frame in frames:
            if frame[0] != TOKENS:
                self._take_deltas(touched)
                touched.clear()
                self._on_rare_frame(frame)
                continue
            for request_id, choice, token_id, logprob, top in unpack(frame):
                open_request = requests.get(RequestId(request_id))
                if open_request is None:
                    continue
                stream = open_request.choices[choice]
                if stream.has_ended:
                    continue
                self.constraints.push(RequestId(request_id), choice, token_id)
                stream.push(token_id, None if logprob is None else TokenEntry(token_id, logprob, top))
                touched[id(stream)] = (open_request, RequestId(request_id), choice)
        self.constraints.flush()
        self._take_deltas(touched)
        self.publish()

    def _on_rare_frame(self, frame: bytes) -> None:
        """One of events, or of scores."""
        if frame[0] == EVENTS:
            for event in unpack_events(frame):
                self._on_sequence_event(event)
            return
        for request_id, choice, entries in scores_of(frame):
            open_request = self._requests.get(request_id)
            if open_request is not None:
                for news in open_request.scored(choice, entries):
                    self._outlets.emit(open_request.reply_to, news)

    def _take_deltas(self, touched: dict[int, tuple[OpenRequest, RequestId, int]]) -> None:
        for open_request, request_id, choice in touched.values():
            stream = open_request.choices[choice]
            for delta in stream.take():
                self._outlets.emit(open_request.reply_to, open_request.delta(choice, delta))
            if stream.failure is not None:
                self._fail(request_id, stream.failure)
            elif stream.stop_string is not None:
                self._abort(request_id, choice)  # its SequenceFinished brings the timings

    def _on_sequence_event(self, event: SequenceQueued | SequenceFinished) -> None:
        open_request = self._requests.get(event.request_id)
        if open_request is None or open_request.encoded is None:
            return
        if isinstance(event, SequenceQueued):
            for news in open_request.accepted():
                self._outlets.emit(open_request.reply_to, news)
        elif event.finish_reason == FinishReason.ERROR:
            error = RequestError(event.status or 500, event.message or "the engine failed", code=event.code)
            self._fail(event.request_id, error)
        elif not open_request.choices[event.choice].is_finished:
            self._finish(open_request, event)

    def _finish(self, open_request: OpenRequest, event: SequenceFinished) -> None:
        for last in open_request.finish(event):
            self._outlets.emit(open_request.reply_to, last)
        failure = open_request.choices[event.choice].failure
        if failure is not None:
            self._fail(event.request_id, failure)
            return
        is_last = open_request.num_open == 0
        self.constraints.end(event.request_id, -1 if is_last else event.choice)
        if is_last:
            self._requests.pop(event.request_id, None)

    # Events

    def _fail(self, request_id: RequestId, error: RequestError) -> None:
        """End a whole request with an error and stop whatever still runs of it."""
        open_request = self._requests.get(request_id)
        if open_request is not None:
            self._abort(request_id)
            self._outlets.emit(open_request.reply_to, failed(request_id, error))

    def publish(self) -> None:
        """Send what this turn produced; requests of an http worker that does not read are dropped."""
        for http_index in self._outlets.publish():
            log.error("http-%d does not read its ring: dropping its requests", http_index)
            self._drop_requests_of(http_index)
        self._context.status.set_gauge(TextGauge.ACTIVE_REQUESTS, len(self._requests))

    def tick(self) -> None:
        """Some times a second: retry frames that did not fit their ring, and look after grammars."""
        self.constraints.check()
        self.publish()

    def _drop_requests_of(self, http_index: int) -> None:
        self._outlets.reset(http_index)
        for request_id, open_request in list(self._requests.items()):
            if open_request.reply_to == http_index:
                self._abort(request_id)


def _engine_unavailable() -> RequestError:
    return RequestError(503, "the engine is not ready; try again", code="engine_unavailable")


async def _serve(context: WorkerContext) -> int:
    context.status.phase = BootPhase.READING_METADATA
    model = context.config.model
    gguf = GGUFFile.open(context.spec.model_path)
    encoder = PromptEncoder.from_gguf(gguf, Path(model.tokenizer) if model.tokenizer else None, model.tool_protocol)
    loop = asyncio.get_running_loop()
    stop = process.stop_event(loop)
    worker = TextWorker(context, encoder)
    context.attach_to_loop(loop, worker.on_messages, worker.on_frames)
    context.ready()
    await worker.constraints.start()
    while not stop.is_set():
        worker.tick()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), FLUSH_S)
    return process.EXIT_CLEAN


if __name__ == "__main__":
    process.run(process.run_async(_serve), TEXT_INBOX)
