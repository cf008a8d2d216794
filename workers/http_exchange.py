"""One HTTP request as the routes see it, and the response that a route returns.

Owns reading the body within its limits; knows no route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, TypeVarTuple
from urllib.parse import parse_qsl

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]  # public, though its stub does not say so

from sparkinfer.api.error_bodies import error_body
from sparkinfer.api.errors import RETRY_AFTER_S
from sparkinfer.api.json_body import parse_object
from sparkinfer.api.sse import encode_json
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from workers.http_answer import Transport
from workers.http_body_thread import BodyThread

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

MAX_DISCARDED = 4  # times the limit, of a body that is too large
BODY_TIMEOUT_S = 300.0  # of a body that announces no length
FIRST_BYTES_S = 30.0    # of one that does, and a second more for each SLOW_BYTES: 1 Mbit/s is twice as fast
SLOW_BYTES = 64 << 10

ANTHROPIC_HEADER = "anthropic-version"  # by which their clients are known on routes that OpenAI has, too

Headers = list[tuple[str, str]]


class HeaderMap(Protocol):
    """Request headers; names in lower case."""

    def get(self, key: str, default: Any = None) -> Any: ...


class Scope(Protocol):
    """What RSGI tells about a request."""

    @property
    def proto(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def authority(self) -> str | None: ...
    @property
    def client(self) -> str: ...
    @property
    def headers(self) -> HeaderMap: ...
    @property
    def query_string(self) -> str: ...


class Connection(Protocol):
    """RSGI's protocol object of one request: read its body, answer it once, learn that the client left."""

    async def __call__(self) -> bytes: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def client_disconnect(self) -> None: ...
    def response_empty(self, status: int, headers: Headers) -> None: ...
    def response_bytes(self, status: int, headers: Headers, body: bytes) -> None: ...
    def response_stream(self, status: int, headers: Headers) -> Transport: ...


@dataclass(frozen=True, slots=True)
class Response:
    """A response that is sent whole."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=lambda: [("content-type", "application/json")])


class Exchange:
    """A request and the means to answer it."""

    def __init__(
        self, scope: Scope, connection: Connection, path: str, max_body_bytes: int, bodies: BodyThread,
        body: dict[str, Any] | None = None,
    ) -> None:
        """path: below the prefix, without a slash at its end. body: where it came another way and is parsed already."""
        self.scope = scope
        self.connection = connection
        self.path = path
        self.received_at = time.monotonic()
        self.request_id = ""
        self.client_id = 0  # which API key it came with, 0 where none is asked for
        self.common_headers: Headers = []  # of the response, whatever it is
        self.sent_status = 200  # of a response that the route sent itself
        self.num_body_bytes = 0  # once it is read
        self.usage: Usage | None = None  # of a generation, once it is accepted
        self._bodies = bodies
        self._body = body  # once it is read
        self._max_body_bytes = max_body_bytes

    def open_stream(self, headers: Headers) -> Transport:
        """Send the head of a 200 response; what is sent through the transport is its body."""
        return self.connection.response_stream(200, [*headers, *self.common_headers])

    def send(self, response: Response) -> None:
        """Send a whole response."""
        headers = [*response.headers, *self.common_headers]
        if response.body:
            self.connection.response_bytes(response.status, headers, response.body)
        else:
            self.connection.response_empty(response.status, headers)

    def header(self, name: str) -> str:
        """A request header, "" when it is absent."""
        value: str = self.scope.headers.get(name, "")
        return value

    def query(self) -> dict[str, str]:
        """The query's parameters, the last value of each; 400 where it is not in UTF-8."""
        try:
            return dict(parse_qsl(self.scope.query_string, keep_blank_values=True, errors="strict"))
        except ValueError as error:  # more fields than Python's limit, too
            raise RequestError(400, "The query of the address cannot be read") from error

    async def json_object(self) -> dict[str, Any]:
        """The body as a JSON object, whatever its content type says; 400, 408, 413 or 415 otherwise."""
        if self._body is None:
            data = await self._read_json()
            self.num_body_bytes = len(data)
            self._body = await self.on_body(parse_object, data)
        return self._body

    async def on_body(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `call` makes of the body that was read; a large one's is made on a thread."""
        return await self._bodies.run(self.num_body_bytes, call, *args)

    async def _read_json(self) -> bytes:
        if self.header("content-encoding").lower() not in ("", "identity"):
            raise RequestError(415, f"Content-Encoding {self.header('content-encoding')[:64]!r} is not supported")
        if self.header("content-type").lower().startswith("multipart/"):
            raise RequestError(415, "The request body must be JSON, not multipart")
        announced = self.header("content-length")
        length = int(announced) if announced.isdecimal() else None
        seconds = BODY_TIMEOUT_S if length is None else min(BODY_TIMEOUT_S, FIRST_BYTES_S + length // SLOW_BYTES)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(length)
        except TimeoutError as error:
            raise RequestError(408, f"The request body did not arrive within {seconds:g} s") from error

    async def _read(self, length: int | None) -> bytes:
        if length is not None and length > self._max_body_bytes:
            if length <= self._max_body_bytes * MAX_DISCARDED:
                await self._read_chunks()
            raise self._too_large()
        if length is None:
            return await self._read_chunks()
        try:
            body = await self.connection()  # whole: one wake-up, not several
        except ProtocolClosed as error:
            raise RequestError(400, f"The request body ended before its {length} bytes") from error
        if len(body) != length:
            raise RequestError(400, f"The request body ended after {len(body)} of {length} bytes")
        return body

    async def _read_chunks(self) -> bytes:
        """A body of unknown length. What is too large is read on for a while, or its sender would miss the answer."""
        chunks = []
        num_bytes = 0
        async for chunk in self.connection:
            num_bytes += len(chunk)
            if num_bytes <= self._max_body_bytes:
                chunks.append(chunk)
            elif num_bytes > self._max_body_bytes * MAX_DISCARDED:
                break
        if num_bytes > self._max_body_bytes:
            raise self._too_large()
        return b"".join(chunks)

    def _too_large(self) -> RequestError:
        return RequestError(413, f"The request body is larger than {self._max_body_bytes} bytes")


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, encode_json(value))


def error_response(exchange: Exchange, error: RequestError, extra: Mapping[str, str] | None = None) -> Response:
    """The error in the shape of the API that the request's path, or its headers, belong to.

    A status that may be retried says after how many seconds.
    """
    headers = [("content-type", "application/json"), *(extra or {}).items()]
    if error.status in RETRY_AFTER_S:
        headers.append(("retry-after", str(RETRY_AFTER_S[error.status])))
    if error.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    is_anthropic = bool(exchange.header(ANTHROPIC_HEADER))
    return Response(error.status, error_body(exchange.path, error, exchange.request_id, is_anthropic), headers)
