"""One WebSocket as its routes see it: messages in, messages out in order, a bound on what waits for a slow client.

Knows no message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]  # public, though its stub does not say so

from sparkinfer.api.json_body import parse_object
from sparkinfer.errors import RequestError
from workers.http_body_thread import BodyThread
from workers.http_exchange import Scope

log = logging.getLogger("http")

_CLOSED = 0  # the kind of RSGI's last message


class Message(Protocol):
    """What RSGI received. data: bytes or str, absent when the client closes."""

    @property
    def kind(self) -> int: ...
    @property
    def data(self) -> Any: ...


class SocketTransport(Protocol):
    """RSGI's accepted WebSocket. A send waits while the client's buffers are full."""

    async def receive(self) -> Message: ...
    async def send_str(self, data: str) -> None: ...


class SocketConnection(Protocol):
    """RSGI's protocol object of one WebSocket."""

    async def accept(self) -> SocketTransport: ...
    def close(self, status: int | None) -> object: ...


class Socket:
    """An accepted WebSocket that carries JSON objects as text."""

    def __init__(
        self, scope: Scope, transport: SocketTransport, bodies: BodyThread, max_message_bytes: int,
        max_unsent_bytes: int,
    ) -> None:
        """max_unsent_bytes: 0 for no bound."""
        self.scope = scope
        self.bodies = bodies
        self.num_received_bytes = 0  # of the last message
        self._transport = transport
        self._max_message_bytes = max_message_bytes
        self._max_unsent_bytes = max_unsent_bytes
        self._unsent: deque[str] = deque()
        self._num_unsent = 0
        self._wake = asyncio.Event()
        self._is_closing = False
        self.cut_off = asyncio.Event()  # the client left too much unread
        self.is_leaving = asyncio.Event()  # the server shuts down, and nothing is open any more

    async def receive(self) -> dict[str, Any] | None:
        """The next object, None once the client is gone. RequestError for what is no object, or too large."""
        try:
            message = await self._transport.receive()
        except ProtocolClosed:
            return None
        if message.kind == _CLOSED:
            return None
        data = message.data.encode() if isinstance(message.data, str) else message.data
        if len(data) > self._max_message_bytes:
            raise RequestError(413, f"The message is larger than {self._max_message_bytes} bytes")
        self.num_received_bytes = len(data)
        return await self.bodies.run(len(data), parse_object, data)

    def send(self, text: str) -> None:
        """Send in order, some time soon."""
        if self.cut_off.is_set():
            return
        self._unsent.append(text)
        self._num_unsent += len(text)
        if self._max_unsent_bytes and self._num_unsent > self._max_unsent_bytes:
            log.warning("%s has not read %d bytes of its WebSocket: cut off", self.scope.client, self._num_unsent)
            self.cut_off.set()
        self._wake.set()

    def close(self) -> None:
        """`write` ends once everything is sent."""
        self._is_closing = True
        self._wake.set()

    async def write(self) -> None:
        """Send what is to be sent until the socket is closed or the client gone."""
        while True:
            while self._unsent:
                text = self._unsent.popleft()
                try:
                    await self._transport.send_str(text)
                except ProtocolClosed:
                    return
                self._num_unsent -= len(text)
            if self._is_closing:
                return
            self._wake.clear()
            await self._wake.wait()
