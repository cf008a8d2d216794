"""Control messages between processes: one PULL inbox per process, a PUSH outbox per peer.

Owns the ZeroMQ sockets (nothing else imports zmq); never knows what a message means. One context per process, made
by the process that uses it. A socket belongs to one thread and carries messages one way only: an Inbox never sends
and an Outbox never receives.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic

import msgspec
import zmq

from ipc.codec import MalformedMessage, MessageDecoder, MessageT

# Messages each side may hold before `send` says no; 64 waiting requests per worker are many, aborts are small.
HIGH_WATER_MARK = 4096


def _socket(kind: int) -> zmq.Socket[bytes]:
    try:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"no socket to be had: {zmq.strerror(error.errno or 0)}") from error
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    return socket


class Inbox(Generic[MessageT]):
    """Listens at `endpoint` and hands out decoded messages in each sender's order.

    Raises OSError naming the endpoint when that is impossible. NOTE: ZeroMQ replaces a socket file that is there
    already; names with generations keep them apart, and the supervisor removes the files with the run directory.
    """

    def __init__(self, endpoint: str, decoder: MessageDecoder[MessageT]) -> None:
        self._decoder = decoder
        self._socket = _socket(zmq.PULL)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise OSError(error.errno, f"cannot listen at {endpoint}: {zmq.strerror(error.errno or 0)}") from error
        self._loop: asyncio.AbstractEventLoop | None = None

    def fileno(self) -> int:
        """ZeroMQ's descriptor. NOTE: it tells of changes, not of messages: drain before waiting and after waking."""
        return self._socket.fileno()

    def drain(self) -> list[MessageT]:
        """Every message that is here, without waiting. Raises MalformedMessage."""
        messages = []
        try:
            while True:
                messages.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return messages

    def poll(self, timeout_s: float) -> bool:
        """Wait until there is a message or the time is up; True when there is one."""
        return self._socket.poll(math.ceil(timeout_s * 1000), zmq.POLLIN) != 0

    def watch(self, loop: asyncio.AbstractEventLoop, on_messages: Callable[[list[MessageT]], None]) -> None:
        """Call `on_messages` with each batch as it arrives, what is here already included, until `close`.

        MalformedMessage goes to the loop's exception handler; the batch that held it is lost, later ones are not.
        """

        def deliver() -> None:
            if self._socket.closed:
                return
            try:
                messages = self.drain()
            except MalformedMessage:
                # Only reading until nothing is left arms the descriptor again.
                loop.call_soon(deliver)
                raise
            if messages:
                on_messages(messages)

        self._loop = loop
        loop.add_reader(self.fileno(), deliver)
        loop.call_soon(deliver)

    def close(self) -> None:
        """Stop listening; unread messages are lost. Closing twice is harmless."""
        if self._socket.closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.fileno())
        self._socket.close()


class Outbox:
    """Connects to one peer's inbox, which may not be there yet; messages wait in order until it is. Raises OSError."""

    def __init__(self, endpoint: str, encoder: msgspec.msgpack.Encoder) -> None:
        self._encoder = encoder
        self._socket = _socket(zmq.PUSH)
        self._socket.connect(endpoint)

    def send(self, message: msgspec.Struct) -> bool:
        """Hand over one message without waiting; False when the peer is too far behind to take it."""
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Hang up at once, dropping what the peer never read. Closing twice is harmless."""
        self._socket.close()
