"""Which JSON types a schema admits, as far as it tells how an unquoted value is to be read. Knows JSON Schema alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

Types = frozenset[str]

ALL_TYPES: Types = frozenset({"string", "number", "boolean", "null", "array", "object"})
_MAX_DEPTH = 64


class ValueKind(Enum):
    """How the text of an argument becomes JSON where the protocol leaves strings unquoted."""

    TEXT = auto()   # only strings are admitted: the text is the string
    JSON = auto()   # no string is admitted: the text is JSON
    MIXED = auto()  # JSON if it is JSON that fits, else a string


def value_kind(schema: Any, root: Any) -> ValueKind:
    """How to read a value of `schema`, a part of `root`, which its references point into."""
    types = json_types(schema, root)
    if types == {"string"}:
        return ValueKind.TEXT
    return ValueKind.MIXED if "string" in types else ValueKind.JSON


def json_types(schema: Any, root: Any, depth: int = 0) -> Types:
    """Types that a value of `schema` may have: never too few; "integer" counts as "number"."""
    if not isinstance(schema, Mapping):
        return frozenset() if schema is False else ALL_TYPES
    if depth > _MAX_DEPTH:
        return ALL_TYPES
    types = _declared(schema)
    if "const" in schema:
        types &= {type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        types &= {type_of(value) for value in schema["enum"]}
    if isinstance(schema.get("$ref"), str):
        types &= json_types(resolve(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            types &= frozenset().union(*(json_types(part, root, depth + 1) for part in schema[key]))
    if isinstance(schema.get("allOf"), list):
        for part in schema["allOf"]:
            types &= json_types(part, root, depth + 1)
    return types


def argument_schemas(parameters: Any, root: Any = None, depth: int = 0) -> dict[str, Any]:
    """The arguments that a function declares, wherever in its schema: each with what its value may be at most."""
    root = parameters if root is None else root
    if not isinstance(parameters, Mapping) or depth > _MAX_DEPTH:
        return {}
    found: dict[str, Any] = dict.fromkeys(parameters.get("required") or (), True) | (parameters.get("properties") or {})
    together = [resolve(parameters["$ref"], root)] if isinstance(parameters.get("$ref"), str) else []
    for part in [*together, *(parameters.get("allOf") or [])]:
        for name, schema in argument_schemas(part, root, depth + 1).items():
            found[name] = {"allOf": [found[name], schema]} if found.get(name, schema) != schema else schema
    for parts in _alternatives(parameters):
        ways = [argument_schemas(part, root, depth + 1) for part in parts]
        for name in dict.fromkeys(name for way in ways for name in way):
            either = {"anyOf": [way[name] for way in ways if name in way]}
            found[name] = {"allOf": [found[name], either]} if name in found else either
    return found


def _alternatives(schema: Mapping[str, Any]) -> list[list[Any]]:
    """Schemas of which one or another holds besides."""
    found = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    if "if" in schema:
        found.append([{"allOf": [schema["if"], schema.get("then", True)]}, schema.get("else", True)])
    for key in ("dependentSchemas", "dependencies"):
        found += [[part, True] for part in (schema.get(key) or {}).values() if isinstance(part, Mapping)]
    return found


def resolve(reference: str, root: Any) -> Any:
    """What a local pointer (RFC 6901) points at; a reference that leads nowhere admits everything.

    >>> resolve("#/$defs/a", {"$defs": {"a": {"type": "null"}}})
    {'type': 'null'}
    """
    value = root
    if not reference.startswith("#"):
        return True
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return True
    return value


def _declared(schema: Mapping[str, Any]) -> Types:
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    known = {"number" if name == "integer" else name for name in names if isinstance(name, str)}
    return ALL_TYPES & known if known else ALL_TYPES


def type_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
