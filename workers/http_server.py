"""The listening sockets of one http worker and what granian is told about them. Knows no route."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Protocol

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError
from workers.http_exchange import Connection, Scope
from workers.http_socket import SocketConnection

CONNECTIONS = 4096  # accepted at once, and waiting to be accepted; granian's own default answers 128 streams at most


class RsgiApp(Protocol):
    """What granian calls for every request and every WebSocket."""

    async def __rsgi__(self, scope: Scope, connection: Connection | SocketConnection) -> None: ...


def make_server(app: RsgiApp, config: ServerConfig, *, unix_socket: str = "") -> Server:
    """An RSGI server for the running loop, on host and port (shared by all http workers) or on a unix socket.

    HTTP/1.1 only: over HTTP/2 streams share a connection, and one slow stream could not be cut off alone.
    Raises ConfigError when certificate, key or unix socket cannot be used.
    """
    cert, key = _certificate(config) if not unix_socket else (None, None)
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


def _certificate(config: ServerConfig) -> tuple[Path | None, Path | None]:
    if not (config.tls_cert or config.tls_key):
        return None, None
    if not (config.tls_cert and config.tls_key):
        raise ConfigError("[server] tls_cert and tls_key: give both or none")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[server] tls_cert = {config.tls_cert!r}, tls_key = {config.tls_key!r}: {error}") from None
    return Path(config.tls_cert), Path(config.tls_key)


def _unix_socket(name: str) -> Path:
    """The path, free to be bound: what a predecessor left there is removed."""
    path = Path(name)
    try:
        if path.is_socket():
            path.unlink()
        elif path.exists():
            raise ConfigError(f"[server] unix_socket = {name!r}: there is a file that is no socket")
        elif not path.parent.is_dir():
            raise ConfigError(f"[server] unix_socket = {name!r}: there is no folder {str(path.parent)!r}")
        elif not os.access(path.parent, os.W_OK):
            raise ConfigError(f"[server] unix_socket = {name!r}: the folder cannot be written to")
    except OSError as error:
        raise ConfigError(f"[server] unix_socket = {name!r}: {error.strerror}") from None
    return path
