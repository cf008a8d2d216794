"""What is wrong with a value, by its schema. Knows JSON Schema; never where the value comes from.

As the specification says, except that numbers are multiples within a relative 1e-9, patterns have ASCII classes, and
the formats that grammars hold are held here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from sparkinfer.grammar.formats import checked_pattern
from sparkinfer.grammar.pattern import PatternError, compiled

_ROOT_URI = "urn:sparkinfer:root"
_MULTIPLE_TOLERANCE = 1e-9
_MAX_SHOWN = 20  # values of an enum, in messages
_MAX_KEPT = 64   # enums
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
    if isinstance(value, str) and not compiled(pattern).search(value):
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


_FORMATS = FormatChecker(formats=())
for _name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"):
    _format = compiled(checked_pattern(_name) or "")
    _FORMATS.checks(_name)(lambda value, form=_format: not isinstance(value, str) or form.search(value) is not None)

_Validator = extend(
    Draft202012Validator,
    {"multipleOf": _multiple_of, "pattern": _pattern, "items": _items, "enum": _enum,
     "dependencies": _dependencies},
)


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
        """The first thing that the schema finds wrong with `value`, None when nothing is."""
        try:
            error = next(self._validator.iter_errors(value), None)
        except (PatternError, RecursionError) as failure:
            return f"$: {failure}"
        return None if error is None else f"{error.json_path}: {error.message:.500}"


def first_violation(schema: Any, value: Any, root: Any = None) -> str | None:
    """What Checker finds, for a schema that is needed once."""
    return Checker(schema, root).first_violation(value)
