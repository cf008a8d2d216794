"""What is wrong with a value, by its schema. Knows JSON Schema; never where the value comes from.

As the specification says, except that numbers are multiples within a relative 1e-9, patterns have ASCII classes, and
the formats that grammars hold are held here too.
"""

from __future__ import annotations

import contextlib
import gc
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from sparkinfer.grammar.formats import checked_pattern
from sparkinfer.grammar.pattern import PatternError, compiled
from sparkinfer.grammar.safe_match import has_match

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]

_ROOT_URI = "urn:sparkinfer:root"
_MULTIPLE_TOLERANCE = 1e-9
_MAX_SHOWN = 20  # values of an enum, in messages
_MAX_KEPT = 64   # enums
MAX_CHECK_S = 0.1
FREE_STEPS = 500  # that are no check that goes on for ever, however slow the machine
MAX_DEPTH = 100  # of keywords within keywords: a few hundred of Python's frames
_SCALARS: dict[int, tuple[list[Any], frozenset[tuple[bool, Any]]]] = {}


def _multiple_of(_: Any, divisor: Any, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, int) and isinstance(divisor, int):
        is_multiple = value % divisor == 0
    else:
        quotient = value / divisor
        is_multiple = math.isfinite(quotient) and abs(quotient - round(quotient)) <= _MULTIPLE_TOLERANCE * max(
            1.0, abs(quotient)
        )
    if not is_multiple:
        yield ValidationError(f"{value!r} is not a multiple of {divisor!r}")


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not has_match(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _items(validator: Any, items: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Draft 7's list of schemas, or what 2020-12 calls items."""
    if not isinstance(value, list):
        return
    if isinstance(items, list):
        for i, (item, child) in enumerate(zip(value, items)):
            yield from validator.descend(item, child, path=i, schema_path=i)
        items, first = schema.get("additionalItems", True), len(items)
    else:
        first = len(schema.get("prefixItems", ()))
    for i, item in enumerate(value[first:], first):
        yield from validator.descend(item, items, path=i)


def _enum(validator: Any, values: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """As the library has it, but thousands of values do not take seconds."""
    if isinstance(value, list | dict):
        yield from Draft202012Validator.VALIDATORS["enum"](validator, values, value, schema)
    elif (isinstance(value, bool), value) not in _scalars(values):
        shown = ", ".join(map(repr, values[:_MAX_SHOWN])) + (", ..." if len(values) > _MAX_SHOWN else "")
        yield ValidationError(f"{value!r} is not one of {shown}")


def _any_of(validator: Any, children: list[Any], value: Any, _: Any) -> Iterator[ValidationError]:
    """As the library has it, but the reasons why each of a thousand alternatives is none are not collected."""
    if all(next(validator.descend(value, child, schema_path=i), None) for i, child in enumerate(children)):
        yield ValidationError(f"{value!r:.400} is not valid under any of the given schemas")


def _scalars(values: list[Any]) -> frozenset[tuple[bool, Any]]:
    """What is neither array nor object among them; kept for the lists seen last, which are known by identity."""
    known = _SCALARS.get(id(values))
    if known is None:
        if len(_SCALARS) >= _MAX_KEPT:
            _SCALARS.clear()
        found = frozenset((isinstance(value, bool), value) for value in values if not isinstance(value, list | dict))
        known = _SCALARS[id(values)] = (values, found)
    return known[1]


def _dependencies(validator: Any, dependencies: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    for name, needed in dependencies.items():
        if name in value:
            child = {"required": needed} if isinstance(needed, list) else needed
            yield from validator.descend(value, child, schema_path=name)


def _pattern_properties(validator: Any, patterns: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, child in patterns.items():
            for name, item in value.items():
                if has_match(pattern, name):
                    yield from validator.descend(item, child, path=name, schema_path=pattern)


def _additional_properties(validator: Any, child: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name, item in value.items():
        if name not in schema.get("properties", {}) and not any(has_match(pattern, name) for pattern in patterns):
            if child is False:
                yield ValidationError(f"{name!r:.100} is not expected")
            else:
                yield from validator.descend(item, child, path=name)


def _unique_items(_: Any, is_asked: Any, value: Any, __: Any) -> Iterator[ValidationError]:
    if is_asked and isinstance(value, list) and len({_frozen(item) for item in value}) < len(value):
        yield ValidationError("the items are not unique")


def _frozen(value: Any) -> Hashable:
    """A value that is equal to another where JSON's values are: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return (isinstance(value, bool), value)


def _if(validator: Any, condition: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if "then" in schema or "else" in schema:
        yield from Draft202012Validator.VALIDATORS["if"](validator, condition, value, schema)


class _TooLongError(Exception):
    """A check takes more time, or more depth, than a client's schema is worth."""


class _Effort(threading.local):
    """What a thread has left for the check at hand."""

    def __init__(self) -> None:
        self.until = 0.0
        self.depth = 0
        self.steps = 0


_effort = _Effort()


def _limited(keyword: Keyword) -> Keyword:
    """A keyword through which checks go deeper, kept from going too deep or on for too long."""
    def check(validator: Any, argument: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        _effort.depth += 1
        try:
            _effort.steps += 1
            if _effort.depth > MAX_DEPTH or (_effort.steps > FREE_STEPS and time.thread_time() > _effort.until):
                raise _TooLongError
            yield from keyword(validator, argument, value, schema) or ()
        finally:
            _effort.depth -= 1

    return check


_FORMATS = FormatChecker(formats=())
for _name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"):
    _format = compiled(checked_pattern(_name) or "")
    _FORMATS.checks(_name)(lambda value, form=_format: not isinstance(value, str) or form.search(value) is not None)

_OWN: dict[str, Keyword] = {
    "multipleOf": _multiple_of, "pattern": _pattern, "items": _items, "enum": _enum, "dependencies": _dependencies,
    "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items, "if": _if, "anyOf": _any_of,
}  # fmt: skip
_DEEPER = (
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "items", "prefixItems", "contains", "properties", "propertyNames",
    "patternProperties", "additionalProperties", "dependentSchemas", "dependencies",
)  # fmt: skip
_KEYWORDS: dict[str, Keyword] = {**Draft202012Validator.VALIDATORS, **_OWN}
_Validator = extend(Draft202012Validator, _OWN | {name: _limited(_KEYWORDS[name]) for name in _DEEPER})


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """One of the whole process's garbage takes as long as a check may, and would count as a part of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Checker:
    """One schema's."""

    def __init__(self, schema: Any, root: Any = None) -> None:
        """root: what "#/..." in a $ref points into; the schema itself when None."""
        root = schema if root is None else root
        resource = DRAFT202012.create_resource({} if isinstance(root, bool) else root)
        registry = Registry().with_resource(_ROOT_URI, resource)
        self._validator = _Validator(
            schema, format_checker=_FORMATS, registry=registry, _resolver=registry.resolver(_ROOT_URI)
        )

    def first_violation(self, value: Any) -> str | None:
        """The first thing that the schema finds wrong with `value`, None when nothing is.

        What takes longer than MAX_CHECK_S, or goes too deep, counts as wrong.
        """
        _effort.until, _effort.depth, _effort.steps = time.thread_time() + MAX_CHECK_S, 0, 0
        try:
            with _without_collections():
                error = next(self._validator.iter_errors(value), None)
        except _TooLongError:
            return "$: it cannot be checked in time"
        except (PatternError, RecursionError) as failure:
            return f"$: {failure}"
        return None if error is None else f"{error.json_path}: {error.message:.500}"


def first_violation(schema: Any, value: Any, root: Any = None) -> str | None:
    """What Checker finds, for a schema that is needed once."""
    return Checker(schema, root).first_violation(value)
