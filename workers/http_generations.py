"""The generation routes: from a parsed body to an answer that was streamed or sent whole.

Owns the open answers of one http worker: their ids, keep-alive comments, disconnects, and what drain waits for.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from sparkinfer.api.chat import parse_chat
from sparkinfer.api.chat_reply import ChatReply
from sparkinfer.api.completions import parse_completion
from sparkinfer.api.completions_reply import CompletionReply
from sparkinfer.api.field_names import SAME_NAMES, FieldNames
from sparkinfer.api.generation import Generation, MakeReply, NewRequestId, Plan
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.schema import Object
from sparkinfer.api.score import is_batch, parse_score
from sparkinfer.api.score_reply import ScoreReply
from sparkinfer.config import ServerConfig
from sparkinfer.errors import RequestError
from sparkinfer.request import RequestId
from workers.http_answer import Answer, StreamBody, WholeBody
from workers.http_exchange import Exchange, Response
from workers.http_metrics import HttpMetrics, outcome_of
from workers.http_service import Service
from workers.http_slow_clients import Connections, UnreadMeter
from workers.http_text_pool import TextPool

Prepare = Callable[[Object], Awaitable[Response | None]]

log = logging.getLogger("http")

MAX_KINDS_TOLD = 100
MAX_KINDS_IN_HEADER = 20
_NOT_FOR_HEADERS = re.compile(r"[^\w.:-]", re.ASCII)
CLIENT_GONE = 499  # nginx's number for a client that left first; only ever seen in metrics


class Traces(Protocol):
    """What takes note of requests that ended."""

    def write(self, exchange: Exchange, answer: Answer | None, outcome: str) -> None: ...


class RequestIds:
    """Ids that no other http worker and no other generation of this one gives out.

    64 bits: http index (8) | generation (16) | counter (40).
    """

    def __init__(self, http_index: int, generation: int) -> None:
        self._counter = itertools.count((http_index & 0xFF) << 56 | (generation & 0xFFFF) << 40)

    def new(self) -> RequestId:
        return RequestId(next(self._counter))


class Generations:
    """Everything that is being generated for clients of this worker."""

    def __init__(
        self, service: Service, pool: TextPool, metrics: HttpMetrics, request_ids: RequestIds, config: ServerConfig,
        traces: Traces | None = None,
    ) -> None:
        self.is_draining = False
        self.open_answers: set[Answer] = set()
        self.num_requests = 0  # since the start of this worker
        self.num_rejected = 0  # of those, refused because the service could not take them
        self._service = service
        self._pool = pool
        self._metrics = metrics
        self._request_ids = request_ids
        self._traces = traces
        self._always_stream_usage = config.always_stream_usage
        self._keepalive_s = config.sse_keepalive_s
        self._max_unread_bytes = config.max_unsent_kib << 10
        self._connections = Connections()
        self._streams: set[StreamBody] = set()
        self._skipped_kinds: set[str] = set()  # of tools, that the log was told of
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    async def chat(self, exchange: Exchange) -> Response | None:
        """POST /v1/chat/completions"""
        return await self.run(exchange, _plan_chat)

    async def completion(self, exchange: Exchange) -> Response | None:
        """POST /v1/completions"""
        return await self.run(exchange, _plan_completion)

    async def score(self, exchange: Exchange) -> Response | None:
        """POST /v1/score"""
        return await self.run(exchange, _plan_score)

    def tick(self) -> None:
        """Half a keep-alive interval went by."""
        for stream in self._streams:
            stream.tick()

    async def idle(self) -> None:
        """Return once no answer is open."""
        await self._idle.wait()

    def accepting(self) -> ModelInfo:
        """What is served; RequestError(503) while no request can be taken."""
        if self.is_draining:
            raise RequestError(503, "The server is shutting down", code="shutting_down")
        info = self._service.model_info
        if info is None or not self._service.is_ready:
            raise RequestError(503, "The model is not ready; please retry", code="not_ready")
        return info

    async def run(
        self, exchange: Exchange, plan: Plan, prepare: Prepare | None = None, names: FieldNames = SAME_NAMES
    ) -> Response | None:
        """Answer `exchange` as `plan` understands its body.

        prepare: looks up what the plan will need of the body, or has the answer; names: of fields, in errors.
        """
        received_at = exchange.received_at
        self.num_requests += 1
        self._metrics.requests.inc()
        answer: Answer | None = None
        error: RequestError | None = RequestError(500, "Internal error")  # unless it ends in another way
        try:
            info = self.accepting()
            content = await exchange.json_object()
            ready = None if prepare is None else await prepare(content)
            if ready is not None:
                error = None
                return ready
            generation, make_reply = await exchange.on_body(plan, content, info, self._request_ids.new)
            generation = generation.of_client(
                exchange.client_id, explain_cache=exchange.header("x-sparkinfer-explain-cache") == "1"
            )
            if generation.skipped_tools:
                self._tell_skipped(exchange, generation.skipped_tools)
            reply = make_reply(secrets.token_hex(12), int(time.time()))
            body: StreamBody | WholeBody
            if generation.stream:
                self._metrics.streaming.inc()
                body = StreamBody(reply, generation.include_usage or self._always_stream_usage)
            else:
                body = WholeBody(reply, generation.num_choices)
            answer = Answer(generation, body, self._metrics, received_at, names)
            exchange.usage = answer.usage
            response = await self._answer(exchange, answer, body)
            error = None
            return response
        except RequestError as failure:
            error = names.in_error(failure)
            raise error from failure.__cause__
        finally:
            outcome = self._count_end(answer, error, time.monotonic() - received_at)
            if self._traces is not None:
                self._traces.write(exchange, answer, outcome)

    async def _answer(self, exchange: Exchange, answer: Answer, body: StreamBody | WholeBody) -> Response | None:
        """Run `answer` to its end; RequestError while the headers are not out yet."""
        self._pool.submit(answer, answer.requests)
        answer.submitted_at = time.monotonic()
        self._open(answer)
        watcher = asyncio.ensure_future(exchange.connection.client_disconnect())
        watcher.add_done_callback(lambda _: self._abandon(answer))
        try:
            await self._until_started(answer, body)
            if answer.error is not None:
                raise answer.error
            if isinstance(body, StreamBody) and not answer.is_cancelled:
                self._streams.add(body)
                body.attach(exchange.open_stream(body.headers), self._meter(exchange))
                if not answer.started.done():
                    body.keep_alive()
            await answer.finished
            if answer.is_cancelled:
                exchange.sent_status = CLIENT_GONE
                return None
            if isinstance(body, StreamBody):
                await body.settle()
                return None
            if answer.error is not None:
                raise answer.error
            return Response(200, await body.document())
        finally:
            watcher.cancel()
            self._abandon(answer)
            self._close(answer, body)

    async def _until_started(self, answer: Answer, body: StreamBody | WholeBody) -> None:
        """Return once `answer` is accepted or over, whose status is known then; a stream that has to wait for long
        begins without knowing, lest its client take the server for dead.
        """
        if isinstance(body, StreamBody):
            await asyncio.wait((answer.started,), timeout=self._keepalive_s or None)
        else:
            await answer.started

    def _tell_skipped(self, exchange: Exchange, kinds: tuple[str, ...]) -> None:
        """Tools that no client of ours can run: a header says so, a counter, and once for each kind the log."""
        kinds = tuple(_NOT_FOR_HEADERS.sub("?", kind) for kind in kinds[:MAX_KINDS_IN_HEADER])
        exchange.common_headers.append(("x-sparkinfer-skipped-tools", ", ".join(kinds)))
        self._metrics.skipped_tools.inc()
        new = [kind for kind in kinds if kind not in self._skipped_kinds]
        if new and len(self._skipped_kinds) < MAX_KINDS_TOLD:
            self._skipped_kinds.update(new)
            log.warning("tools of these types are skipped: %s (request %s)", ", ".join(new), exchange.request_id)

    def _meter(self, exchange: Exchange) -> UnreadMeter | None:
        client = exchange.scope.client
        if not self._max_unread_bytes or client.startswith("unix:"):
            return None
        return UnreadMeter(self._connections, client, self._max_unread_bytes)

    def _abandon(self, answer: Answer) -> None:
        """The client left, or the answer is over: whatever is still in flight of it is aborted."""
        answer.cancel()
        self._pool.abandon(answer, answer.requests)

    def _open(self, answer: Answer) -> None:
        self.open_answers.add(answer)
        self._idle.clear()

    def _close(self, answer: Answer, body: StreamBody | WholeBody) -> None:
        if isinstance(body, StreamBody):
            self._streams.discard(body)
            if body.detach():
                self._metrics.cut_off.inc()
        self.open_answers.discard(answer)
        if not self.open_answers:
            self._idle.set()

    def _count_end(self, answer: Answer | None, error: RequestError | None, seconds: float) -> str:
        """Count a request that ended; the outcome."""
        is_accepted = answer is not None and answer.started.done() and answer.usage.prompt_tokens > 0
        if error is None and answer is not None:
            error = answer.error
        is_cancelled = error is None and answer is not None and answer.is_cancelled
        outcome = "cancelled" if is_cancelled else outcome_of(error, is_accepted=is_accepted)
        self.num_rejected += outcome == "overloaded"
        self._metrics.count_end(outcome, None if answer is None else answer.usage, seconds)
        return outcome


def _plan_chat(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
    generation = parse_chat(body, info, new_request_id)
    return generation, functools.partial(ChatReply, info=info, exclude_reasoning=generation.exclude_reasoning)


def _plan_completion(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
    return parse_completion(body, info, new_request_id), functools.partial(CompletionReply, info=info)


def _plan_score(body: Object, info: ModelInfo, new_request_id: NewRequestId) -> tuple[Generation, MakeReply]:
    generation = parse_score(body, info, new_request_id)
    has_top = bool(generation.requests[0].sampling.prompt_logprobs)
    return generation, functools.partial(ScoreReply, info=info, has_top=has_top, is_batch=is_batch(body))
