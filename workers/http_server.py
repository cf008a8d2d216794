"""The listening sockets of one http worker and what granian is told about them. Knows no route."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError
from workers.http_exchange import Connection, Scope
from workers.http_socket import SocketConnection
from workers.listen_address import certificate, unix_socket_path

CONNECTIONS = 4096  # accepted at once, and waiting to be accepted; granian's own default answers 128 streams at most


class RsgiApp(Protocol):
    """What granian calls for every request and every WebSocket."""

    async def __rsgi__(self, scope: Scope, connection: Connection | SocketConnection) -> None: ...


def make_server(app: RsgiApp, config: ServerConfig, *, unix_socket: str = "") -> Server:
    """An RSGI server for the running loop, on host and port (shared by all http workers) or on a unix socket.

    HTTP/1.1 only: over HTTP/2 streams share a connection, and one slow stream could not be cut off alone.
    Raises ConfigError when certificate, key or unix socket cannot be used.
    """
    cert, key = certificate(config) if not unix_socket else (None, None)
    return Server(
        app,
        address=config.host,
        port=config.port,
        uds=_unix_socket(unix_socket) if unix_socket else None,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(max_buffer_size=config.max_header_kib << 10),
        websockets=True,
        backlog=CONNECTIONS,
        backpressure=CONNECTIONS,
        log_enabled=False,
        ssl_cert=cert,
        ssl_key=key,
    )


def _unix_socket(name: str) -> Path:
    """The path, free to be bound: what a predecessor left there is removed."""
    path = unix_socket_path(name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"[server] unix_socket = {name!r}: {error.strerror}") from None
    return path
