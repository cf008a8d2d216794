"""The prefix that [prefix_cache] asks to have ready, read from its settings. Knows ids; never models or caches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sparkinfer.config import PrefixCacheConfig
from sparkinfer.errors import ConfigError


def read_pinned_tokens(config: PrefixCacheConfig) -> list[int]:
    """The token ids of pinned_tokens_file if it is named, else of pinned_tokens; empty for no prefix.

    Raises ConfigError naming key and value. Whether the model has such tokens is not known here.
    """
    if not config.pinned_tokens_file:
        return [_token_id("pinned_tokens", token) for token in config.pinned_tokens]
    where = f"pinned_tokens_file = {config.pinned_tokens_file!r}"
    try:
        found = json.loads(Path(config.pinned_tokens_file).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"[prefix_cache] {where}: {error}") from None
    if not isinstance(found, list):
        raise ConfigError(f"[prefix_cache] {where}: expected a JSON list of token ids")
    return [_token_id(where, token) for token in found]


def _token_id(where: str, value: Any) -> int:
    if type(value) is int and 0 <= value < 1 << 31:
        return value
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    raise ConfigError(f"[prefix_cache] {where}: {value!r} is not a token id")
