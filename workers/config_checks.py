"""What a start would refuse beyond single values, found without a model or a child. Creates and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from sparkinfer.config import Config
from sparkinfer.errors import ConfigError
from sparkinfer.pinned_prefix import read_pinned_tokens
from workers.http_api_keys import ApiKeys
from workers.listen_address import certificate, unix_socket_path


def check(config: Config) -> None:
    """Raises ConfigError naming key and value."""
    if config.prefix_cache.enabled:
        read_pinned_tokens(config.prefix_cache)
        if config.prefix_cache.directory:
            _check_directory("[prefix_cache] directory", config.prefix_cache.directory)
    certificate(config.server)
    ApiKeys(config.server.api_keys, config.server.api_keys_file)
    if config.server.unix_socket:
        unix_socket_path(config.server.unix_socket)
    if config.server.responses_directory:
        _check_directory("[server] responses_directory", config.server.responses_directory)


def _check_directory(key: str, name: str) -> None:
    """It can be written to, or be made in the nearest folder that is there."""
    path = Path(name).expanduser().absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise ConfigError(f"{key} = {name!r}: {path} is not a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{key} = {name!r}: {path} is not writable")
