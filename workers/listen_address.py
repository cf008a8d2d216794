"""Where the server listens, checked before it does: the resolved address, which must be free and is claimed for one
supervisor at a time; certificate and key; a unix socket."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import ssl
from pathlib import Path

from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError


class AddressInUse(Exception):
    """Something else listens there, or another supervisor is about to."""


def claim_address(config: ServerConfig) -> tuple[ServerConfig, socket.socket]:
    """The section with `host` as a number, and the claim, which lasts until it is closed or this process ends.

    Workers share the port by SO_REUSEPORT, so the kernel would let a second server's workers join in. The claim is an
    abstract Unix socket named after the port; the kernel frees it however the supervisor ends.
    Raises ConfigError for a host that does not resolve or is not ours, AddressInUse.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"[server] host = {config.host!r}: {error}") from None
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sparkinfer-port-{config.port}")
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"{config.host}:{config.port} is in use") from None
        raise ConfigError(f"[server] host = {config.host!r}, port = {config.port}: {error.strerror}") from None
    return dataclasses.replace(config, host=str(address[0])), claim


def certificate(config: ServerConfig) -> tuple[Path | None, Path | None]:
    """The files of certificate and key, None without TLS. Raises ConfigError when they cannot be used."""
    if not (config.tls_cert or config.tls_key):
        return None, None
    if not (config.tls_cert and config.tls_key):
        raise ConfigError("[server] tls_cert and tls_key: give both or none")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[server] tls_cert = {config.tls_cert!r}, tls_key = {config.tls_key!r}: {error}") from None
    return Path(config.tls_cert), Path(config.tls_key)


def unix_socket_path(name: str) -> Path:
    """Where a socket can be bound, though another one may be left there. Raises ConfigError."""
    path = Path(name)
    fault = ""
    try:
        if path.exists() and not path.is_socket():
            fault = "there is a file that is no socket"
        elif not path.parent.is_dir():
            fault = f"there is no folder {str(path.parent)!r}"
        elif not os.access(path.parent, os.W_OK):
            fault = "the folder cannot be written to"
    except OSError as error:
        fault = str(error)
    if fault:
        raise ConfigError(f"[server] unix_socket = {name!r}: {fault}")
    return path
