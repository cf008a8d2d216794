"""Cuts off clients that stop reading a stream, before what they left unread fills the memory.

RSGI takes every chunk at once and has no back-pressure. What a client has not read is measured on its TCP connection
instead: the bytes we sent minus those it acknowledged (TCP_INFO), once every CHECK_BYTES of a stream. Streams shorter
than that cost nothing. Connections over a unix socket are not measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import stat
import struct
import sys
import termios

log = logging.getLogger("http")

CHECK_BYTES = 128 << 10
_BYTES_ACKED = struct.Struct("=Q")  # tcpi_bytes_acked, at byte 120 of struct tcp_info since Linux 4.1
_BYTES_ACKED_AT = 120
_INFO_BYTES = 128
_DROP_AFTER_MS = 1000  # how long the kernel goes on offering what it holds to a client that was cut off


class Connections:
    """The process's client sockets by their peers' addresses, found in its descriptor table when asked for."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._looked_at: dict[int, tuple[int, str]] = {}  # descriptor -> the socket's inode and its peer

    def find(self, client: str) -> socket.socket | None:
        """A duplicate of the socket connected to `client` ("127.0.0.1:4711", "[::1]:4711"), None if there is none."""
        found = self._duplicate(client)
        if found is None:
            self._scan()
            found = self._duplicate(client)
        return found

    def _duplicate(self, client: str) -> socket.socket | None:
        """The socket at the remembered descriptor, unless the descriptor means something else by now."""
        descriptor = self._descriptors.get(client)
        if descriptor is None:
            return None
        with contextlib.suppress(OSError):
            duplicate = _socket(descriptor)
            if _peer(duplicate) == client:
                return duplicate
            duplicate.close()
        return None

    def _scan(self) -> None:
        """Look at every descriptor that means something else than last time."""
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # closed meanwhile, or no TCP connection
                found = os.fstat(descriptor)
                inode, client = self._looked_at.get(descriptor, (0, ""))
                if not stat.S_ISSOCK(found.st_mode) or inode == found.st_ino:
                    continue
                if self._descriptors.get(client) == descriptor:
                    del self._descriptors[client]
                with _socket(descriptor) as duplicate:
                    client = _peer(duplicate)
                self._looked_at[descriptor] = (found.st_ino, client)
                self._descriptors[client] = descriptor


class UnreadMeter:
    """What one client has not read of one stream. Close it: it holds a duplicate of the socket."""

    def __init__(self, connections: Connections, client: str, max_unread_bytes: int) -> None:
        """client: its address as RSGI gives it."""
        self.is_cut_off = False
        self._connections = connections
        self._client = client
        self._max_unread_bytes = max(max_unread_bytes, 4 * CHECK_BYTES)
        self._unread = 0       # too high by CHECK_BYTES at most
        self._unchecked = 0    # bytes sent since the last look
        self._acknowledged = 0
        self._socket: socket.socket | None = None

    def add(self, num_bytes: int) -> None:
        """So many bytes were sent; the client is cut off when it is too far behind."""
        self._unchecked += num_bytes
        if self._unchecked >= CHECK_BYTES and not self.is_cut_off:
            self._look()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _look(self) -> None:
        self._unread += self._unchecked
        self._unchecked = 0
        is_first = self._socket is None
        if self._socket is None:
            self._socket = self._connections.find(self._client)
            if self._socket is None:
                self._unchecked = -(1 << 62)  # gone, or nothing that can be measured: never look again
                return
        acknowledged = _bytes_acknowledged(self._socket)
        if not is_first:
            self._unread = max(0, self._unread - (acknowledged - self._acknowledged))
        self._acknowledged = acknowledged
        if self._unread > self._max_unread_bytes:
            if _send_queue_bytes(self._socket):
                self._cut_off()
            else:
                self._unread = 0  # it took all it was sent: it is we who are late

    def _cut_off(self) -> None:
        """End the connection. The server sees it closed, which cancels the request as any disconnect does."""
        assert self._socket is not None
        self.is_cut_off = True
        log.warning("%s has not read %d bytes of its stream: cut off", self._client, self._unread)
        with contextlib.suppress(OSError):  # it may be gone already
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DROP_AFTER_MS)
            self._socket.shutdown(socket.SHUT_RDWR)


def _bytes_acknowledged(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0]) if len(info) == _INFO_BYTES else 0


def _send_queue_bytes(connection: socket.socket) -> int:
    """What the kernel holds for a peer that has not acknowledged it."""
    return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _socket(descriptor: int) -> socket.socket:
    """A duplicate of a socket; OSError when `descriptor` is closed or something else."""
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _peer(connection: socket.socket) -> str:
    """The peer's address as RSGI writes it; OSError when there is none."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        raise OSError("not a TCP connection")
    host, port = connection.getpeername()[:2]
    return f"[{host}]:{port}" if connection.family == socket.AF_INET6 else f"{host}:{port}"
