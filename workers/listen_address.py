"""Where the server listens: the resolved address, checked to be free and claimed for one supervisor at a time."""

from __future__ import annotations

import dataclasses
import errno
import socket

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
