"""Strict JSON of a request body: what a lenient parser would guess about is refused with 400.

Refused: invalid UTF-8, duplicate keys at any depth, NaN and Infinity (also as 1e999), lone surrogates, deep nesting,
and anything but an object at the top. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from sparkinfer.errors import RequestError

MAX_DEPTH = 128  # nested arrays and objects; a JSON schema of a real tool stays under 30
MAX_CONTAINERS = 200_000  # arrays and objects in one body: bounds the time and memory of parsing it

# The next bracket, or the end, behind any number of strings and other text. It never fails and never goes back, so
# that a hostile body costs no more than its length.
_NEXT_BRACKET = re.compile(r"""(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?)*+([\[\]{}]|\Z)""", re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; RequestError(400) says what is wrong with any other input."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"The request body is not valid UTF-8 (byte {error.start})") from error
    value = parse_json(text, "The request body")
    if not isinstance(value, dict):
        raise RequestError(400, "The request body must be a JSON object")
    return value


def parse_json(text: str, what: str, *, param: str | None = None, allows_repeats: bool = False) -> Any:
    """Decode `text` under the rules above; `what` starts the error message, `param` is its path.

    allows_repeats: a key may occur twice, and the last one counts
    """
    problem = _structural_problem(text)
    if problem is not None:
        raise RequestError(400, f"{what} {problem}", param=param)
    try:
        value = json.loads(
            text, object_pairs_hook=dict if allows_repeats else _object, parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )  # fmt: skip
    except ValueError as error:
        reason = str(error).partition(";")[0]  # Python's advice on long numbers is not for clients
        raise RequestError(400, f"{what} is not valid JSON: {reason}", param=param) from error
    if _SURROGATE_ESCAPE.search(text) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise RequestError(400, f"{what} contains a lone UTF-16 surrogate", param=param)
    return value


def _structural_problem(text: str) -> str | None:
    """Why `text` is too deep or too full of containers for a recursive parser, None if it is not. Linear time."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return None
    depth = containers = 0
    for match in _NEXT_BRACKET.finditer(text):
        bracket = match[1]
        if bracket in ("[", "{"):
            depth += 1
            containers += 1
            if depth > MAX_DEPTH:
                return f"is nested too deeply (at most {MAX_DEPTH} levels)"
            if containers > MAX_CONTAINERS:
                return f"has more than {MAX_CONTAINERS} arrays and objects"
        elif bracket:
            depth -= 1
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key[:64]!r}")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:64]} is out of range")
    return value
