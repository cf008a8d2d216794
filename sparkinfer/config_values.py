"""One configuration value: from TOML or plain text to its field's type and within its limits.

Knows fields and sources by name only; which sections there are is config.py's business.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from sparkinfer.errors import ConfigError


def converted(where: str, value: Any, kind: Any, source: str) -> Any:
    """`value` as the field's type; text from the environment or --set is parsed, TOML values must fit already."""
    from_text = isinstance(value, str) and (source == "--set" or source.startswith("environment "))
    origin = typing.get_origin(kind) or kind
    if origin is tuple and from_text and value.lstrip().startswith("["):
        raise ConfigError(f"{where} = {value!r}: expected values separated by commas, without brackets")
    if origin is tuple:
        items = [item for item in value.split(",") if item] if from_text else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item.isascii() and item for item in items):
            raise ConfigError(f"{where}: expected a list of non-empty ASCII strings")
        return tuple(items)
    if from_text and origin is not str:
        value = _parsed(where, value, origin)
    if origin is float and type(value) is int:
        return float(value)
    if type(value) is not origin:
        raise ConfigError(f"{where} = {value!r}: expected {_TYPE_NAMES[origin]}")
    if origin is str and not value.isprintable():
        raise ConfigError(f"{where} = {value!r}: expected printable text")
    return value


_TYPE_NAMES = types.MappingProxyType({int: "an integer", float: "a number", bool: "true or false", str: "a string"})
_BOOL_WORDS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def _parsed(where: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in _BOOL_WORDS:
            raise ConfigError(f"{where} = {text!r}: expected {_TYPE_NAMES[bool]}")
        return _BOOL_WORDS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{where} = {text!r}: expected {_TYPE_NAMES[kind]}") from None


def checked(where: str, value: Any, spec: dataclasses.Field[Any]) -> Any:
    choices, low, high = (spec.metadata.get(name) for name in ("choices", "low", "high"))
    if choices and value not in choices:
        raise ConfigError(f"{where} = {value!r}: allowed: {', '.join(choices)}")
    if low is not None and not low <= value <= high:
        raise ConfigError(f"{where} = {value!r}: allowed: {low} to {high}")
    pattern = spec.metadata.get("pattern")
    if pattern and value and not re.fullmatch(pattern, value):
        raise ConfigError(f"{where} = {value!r}: expected {spec.metadata['expected']}")
    return value


def hint(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
