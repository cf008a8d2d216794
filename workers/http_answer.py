"""One HTTP request while its answer is produced: events of the text pool in, bytes or a whole document out.

Lives on the event loop of one http worker, which alone touches it. Knows no route and no peer.

An Answer drives the transport straight from the ring's wake-up: RSGI's send_bytes hands its bytes over when it is
called (what it returns is an awaitable that is already done), so a token needs no task and no future.

NOTE: RSGI has no back-pressure and does not tell how much of a stream the client has not read; an UnreadMeter does.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from ipc.messages import Delta, Failed, Finished, Started, TextEvent, Tokenized
from sparkinfer.api.field_names import SAME_NAMES, FieldNames
from sparkinfer.api.generation import Generation
from sparkinfer.api.reply import Choice, KeptReply, Reply
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, RequestId
from workers.http_metrics import HttpMetrics
from workers.http_slow_clients import UnreadMeter

MAX_ENTRIES_AT_ONCE = 4000  # log-probabilities of one document: about 5 ms


class Transport(Protocol):
    """The part of RSGI's stream transport that is used."""

    def send_bytes(self, data: bytes) -> object: ...


class Body(Protocol):
    """Where an Answer puts what it learns; `index` counts choices over all prompts."""

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> None: ...
    def delta(self, index: int, delta: Delta) -> None: ...
    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None) -> None: ...
    def end(self, usage: Usage) -> None: ...
    def fail(self, error: RequestError) -> None: ...
    def flush(self) -> None: ...


class StreamBody:
    """Chunks, one write per flush. Until a transport is attached they wait."""

    __slots__ = ("_chunks", "_meter", "_reply", "_send_usage", "_transport", "_usage", "quiet_ticks")

    def __init__(self, reply: Reply, send_usage: bool) -> None:
        self._reply = reply
        self._send_usage = send_usage
        self._chunks: list[bytes] = []
        self._transport: Transport | None = None
        self._meter: UnreadMeter | None = None
        self._usage: Usage | None = None  # of an answer that has ended and is to be settled
        self.quiet_ticks = 0  # turns of the keep-alive clock since the last write

    @property
    def headers(self) -> list[tuple[str, str]]:
        return self._reply.stream_headers

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> None:
        self._chunks.append(self._reply.start(index, echo, num_prompt_tokens))

    def delta(self, index: int, delta: Delta) -> None:
        self._chunks.append(self._reply.delta(index, delta))

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None) -> None:
        self._chunks.append(self._reply.finish(index, finish_reason, stop_string))

    def end(self, usage: Usage) -> None:
        if isinstance(self._reply, KeptReply):
            self._usage = usage
        else:
            self._chunks.append(self._reply.end(usage if self._send_usage else None))

    async def settle(self) -> None:
        """The answer is over: what an answer that is kept says last."""
        if self._usage is not None and isinstance(self._reply, KeptReply):
            await self._reply.keep(None, self._usage)
            self._chunks.append(self._reply.end(self._usage))
            self.flush()

    def fail(self, error: RequestError) -> None:
        self._chunks.append(self._reply.failure(error))

    def attach(self, transport: Transport, meter: UnreadMeter | None) -> None:
        """The headers are out: from now on every flush writes. meter: None when unread bytes do not matter."""
        self._transport = transport
        self._meter = meter
        self.flush()

    def detach(self) -> bool:
        """The stream is over; True when its client was cut off."""
        if self._meter is None:
            return False
        self._meter.close()
        return self._meter.is_cut_off

    def flush(self) -> None:
        if self._transport is None or not self._chunks:
            return
        data = b"".join(self._chunks)
        self._chunks.clear()
        if data:
            self._transport.send_bytes(data)
            self.quiet_ticks = 0
            if self._meter is not None:
                self._meter.add(len(data))

    def tick(self) -> None:
        """Half a keep-alive interval went by; the second one without a write sends a sign of life."""
        self.quiet_ticks += 1
        if self.quiet_ticks >= 2 and self._transport is not None:
            self.keep_alive()

    def keep_alive(self) -> None:
        """Send a sign of life."""
        self._chunks.append(self._reply.keep_alive())
        self.flush()


class WholeBody:
    """Collects the choices; `document` can be written after `end`."""

    def __init__(self, reply: Reply, num_choices: int) -> None:
        self._reply = reply
        self._choices = [Choice(index) for index in range(num_choices)]
        self._usage = Usage()

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> None:
        self._choices[index].echo = echo

    def delta(self, index: int, delta: Delta) -> None:
        self._choices[index].add(delta)

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None) -> None:
        self._choices[index].close(finish_reason, stop_string)

    def end(self, usage: Usage) -> None:
        self._usage = usage

    def fail(self, error: RequestError) -> None:
        pass

    def flush(self) -> None:
        pass

    async def document(self) -> bytes:
        """The whole answer; thousands of log-probabilities are written on a thread, beside everybody's streams."""
        if isinstance(self._reply, KeptReply):
            await self._reply.keep(self._choices, self._usage)
        num_entries = sum(1 + len(entry.top) for choice in self._choices for entry in choice.logprobs or ())
        if num_entries <= MAX_ENTRIES_AT_ONCE:
            return self._reply.document(self._choices, self._usage)
        return await asyncio.to_thread(self._reply.document, self._choices, self._usage)


class Answer:
    """All prompts and choices of one HTTP request. Ends once: finished, failed or cancelled."""

    def __init__(
        self, generation: Generation, body: Body, metrics: HttpMetrics, received_at: float,
        names: FieldNames = SAME_NAMES,
    ) -> None:
        """received_at: time.monotonic() when the request was read; names: of fields, in errors."""
        self.requests = generation.requests
        self.usage = Usage()
        self.error: RequestError | None = None
        self.is_done = False
        self.is_cancelled = False
        self.submitted_at: float | None = None  # time.monotonic() when it was given to a text worker
        self.first_end: tuple[Finished, float] | None = None  # of a choice, and when it was heard of
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()  # first event of any kind, or cancelled
        self.finished: asyncio.Future[None] = loop.create_future()  # is_done
        self._body = body
        self._names = names
        self._tool_paths = generation.tool_paths
        self._metrics = metrics
        self._last_write_at = 0.0
        self._received_at = received_at
        self._has_new_tokens = False
        self._cached: dict[RequestId, int] = {}
        self._first_index: dict[RequestId, int] = {}
        self._num_open = 0
        for request in self.requests:
            self._first_index[request.request_id] = self._num_open
            self._num_open += request.n

    def feed(self, event: TextEvent) -> None:
        """One event of one of the requests, in order; ignored once the answer is done."""
        if self.is_done:
            return
        if type(event) is Delta:
            index = self._first_index[event.request_id] + event.choice
            self._body.delta(index, event)
            if event.num_tokens:  # an echoed prompt is no news
                self._has_new_tokens = True
        elif type(event) is Finished:
            self._finish(event)
        elif type(event) is Started:
            self._start(event)
        elif type(event) is Failed:
            self.fail(self._names.in_error(_error_of(event), self._tool_paths))

    def flush(self, now: float) -> None:
        """The wake-up is over: write what it brought. now: time.monotonic()."""
        self._body.flush()
        if self._has_new_tokens:
            self._has_new_tokens = False
            if self._last_write_at:
                self._metrics.inter_token.add(now - self._last_write_at)
            else:
                self._metrics.first_token.add(now - self._received_at)
            self._last_write_at = now

    def fail(self, error: RequestError) -> None:
        """End the answer with an error, in the stream if there is one; nothing happens when it is done already."""
        if not self.is_done:
            self.error = error
            self._body.fail(error)
            self._end()

    def cancel(self) -> None:
        """The client is gone."""
        if not self.is_done:
            self.is_cancelled = True
            self._end()

    def _start(self, event: Started) -> None:
        first = self._first_index[event.request_id]
        self.usage.add_prompt(event.num_prompt_tokens)
        for request in self.requests:
            if request.request_id == event.request_id:
                for choice in range(request.n):
                    self._body.start(first + choice, event.echo, event.num_prompt_tokens)
        self._cached[event.request_id] = 0
        if not self.started.done() and len(self._cached) == len(self.requests):
            self.started.set_result(None)

    def _finish(self, event: Finished) -> None:
        reason = FinishReason(event.finish_reason)
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            self.fail(RequestError(503, "The generation was aborted", code="aborted"))
            return
        self._metrics.count_choice(event)
        self.first_end = self.first_end or (event, time.monotonic())
        self._body.finish(self._first_index[event.request_id] + event.choice, reason, event.stop_string)
        self.usage.add_choice(event.num_tokens, event.num_reasoning_tokens, event.ttft_ms, event.generation_ms)
        self.usage.cache = self.usage.cache or event.cache
        self._cached[event.request_id] = max(self._cached.get(event.request_id, 0), event.num_cached_tokens)
        self._num_open -= 1
        if self._num_open == 0:
            self.usage.cached_tokens = sum(self._cached.values())
            self._body.end(self.usage)
            self._end()

    def _end(self) -> None:
        self.is_done = True
        for future in (self.started, self.finished):
            if not future.done():
                future.set_result(None)


def _error_of(event: Failed) -> RequestError:
    return RequestError(event.status, event.message, param=event.param, code=event.code, details=event.details)


class TokenAnswer:
    """The answer of Count or Detokenize: an event sink like Answer, without a stream."""

    def __init__(self) -> None:
        self.is_done = False
        self.tokenized: asyncio.Future[Tokenized] = asyncio.get_running_loop().create_future()

    def feed(self, event: TextEvent) -> None:
        if self.is_done:
            return
        self.is_done = True
        if isinstance(event, Tokenized):
            self.tokenized.set_result(event)
        elif isinstance(event, Failed):
            self.fail(_error_of(event))

    def flush(self, now: float) -> None:
        pass

    def fail(self, error: RequestError) -> None:
        self.is_done = True
        if not self.tokenized.done():
            self.tokenized.set_exception(error)

    def cancel(self) -> None:
        self.is_done = True
        self.tokenized.cancel()
