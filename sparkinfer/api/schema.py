"""Typed readers over decoded JSON objects: each returns a checked value or raises RequestError(400) with its path.

A null counts as absent everywhere, because SDKs send explicit nulls. Knows no field of any API.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from sparkinfer.errors import RequestError

Object = Mapping[str, Any]

_TYPE_NAMES = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array",
               dict: "an object", type(None): "null"}  # fmt: skip


def fail(path: str, message: str, *, code: str | None = None) -> NoReturn:
    """Raise the client's error about the field at `path`."""
    raise RequestError(400, f"{path}: {message}", param=path, code=code)


def type_name(value: Any) -> str:
    """How an error message calls the JSON type of `value`."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def join(path: str, key: str) -> str:
    """Path of `key` inside the object at `path` ("" is the body itself)."""
    return f"{path}.{key}" if path else key


def reject_unknown(obj: Object, allowed: Collection[str], path: str) -> None:
    """Refuse keys that are not in `allowed`: a misspelt nested key must not be dropped silently."""
    for key in obj:
        if key not in allowed:
            fail(join(path, key[:64]), f"unknown field; allowed are {', '.join(sorted(allowed))}")


def as_object(value: Any, path: str) -> Object:
    if not isinstance(value, dict):
        fail(path, f"must be an object, not {type_name(value)}")
    return value


def as_list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        fail(path, f"must be an array, not {type_name(value)}")
    return value


def as_str(value: Any, path: str) -> str:
    if not isinstance(value, str):
        fail(path, f"must be a string, not {type_name(value)}")
    return value


def as_bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        fail(path, f"must be a boolean, not {type_name(value)}")
    return value


def as_int(value: Any, path: str, low: int, high: int) -> int:
    """An integer in [low, high]; booleans and numbers written with a fraction are not integers."""
    if isinstance(value, bool) or not isinstance(value, int):
        fail(path, f"must be an integer, not {type_name(value)}")
    if not low <= value <= high:
        fail(path, f"must be an integer from {low} to {high}, got {_short(value)}")
    return value


def as_float(value: Any, path: str, low: float, high: float) -> float:
    """A number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(path, f"must be a number, not {type_name(value)}")
    if not low <= value <= high:
        fail(path, f"must be a number from {low:g} to {high:g}, got {_short(value)}")
    return float(value)


def read_str(obj: Object, key: str, path: str = "") -> str | None:
    value = obj.get(key)
    return None if value is None else as_str(value, join(path, key))


def read_bool(obj: Object, key: str, default: bool, path: str = "") -> bool:
    value = obj.get(key)
    return default if value is None else as_bool(value, join(path, key))


def read_int(obj: Object, key: str, low: int, high: int, path: str = "") -> int | None:
    value = obj.get(key)
    return None if value is None else as_int(value, join(path, key), low, high)


def read_float(obj: Object, key: str, default: float, low: float, high: float, path: str = "") -> float:
    value = obj.get(key)
    return default if value is None else as_float(value, join(path, key), low, high)


def read_object(obj: Object, key: str, path: str = "") -> Object | None:
    value = obj.get(key)
    return None if value is None else as_object(value, join(path, key))


def read_list(obj: Object, key: str, path: str = "") -> list[Any] | None:
    value = obj.get(key)
    return None if value is None else as_list(value, join(path, key))


def read_choice(obj: Object, key: str, allowed: Collection[str], path: str = "") -> str | None:
    """One of a few words."""
    value = read_str(obj, key, path)
    if value is not None and value not in allowed:
        fail(join(path, key), f"must be one of {', '.join(allowed)}, got {value[:64]!r}")
    return value


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else (str(value) if abs(value) < 10**30 else "a huge number")
