"""The arguments of a function as a protocol writes them that names each one: which there are, and which must be there.

    parameters of a function  ->  forms, one of which the arguments have: each a list of names with their schemas
    schema of one argument    ->  what of it is a string, written without quotes, and what is JSON

Knows JSON Schema; whether a keyword is supported at all is decided where the whole schema is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkinfer.text.tool_protocols.value_types import json_types, resolve

_STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_READ_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf", "$defs", "definitions",
    "description", "title", "default", "examples", "$schema", "$comment", "$id", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
_MAX_DEPTH = 32
_MAX_FORMS = 64


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """One way to call a function. additional: the schema of further arguments, False for none."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    additional: Any = True

    def with_part(self, other: ArgumentForm) -> ArgumentForm:
        """What both ask for."""
        properties = dict(self.properties)
        for name, schema in other.properties.items():
            known = properties.get(name, schema)
            properties[name] = schema if known == schema else {"allOf": [known, schema]}
        additional = other.additional if self.additional is True else self.additional
        return ArgumentForm(properties, self.required | other.required, additional)


@dataclass(slots=True)
class ArgumentForms:
    """All the ways, and the keywords that they do not keep to by themselves."""

    forms: list[ArgumentForm]
    unread: set[str] = field(default_factory=set)


def argument_forms(parameters: Any, root: Any = None, depth: int = 0) -> ArgumentForms:
    """The forms of `parameters`, a part of `root` (itself when None)."""
    root = parameters if root is None else root
    if not isinstance(parameters, Mapping):
        return ArgumentForms([ArgumentForm()])
    unread = {key for key in parameters if key not in _READ_KEYWORDS and not key.startswith("x-")}
    own = ArgumentForm(
        dict(parameters.get("properties") or {}),
        frozenset(parameters.get("required") or ()),
        parameters.get("additionalProperties", True),
    )
    found = ArgumentForms([own], unread)
    if depth >= _MAX_DEPTH:
        found.unread |= {"$ref"}
        return found
    if isinstance(parameters.get("$ref"), str):
        _combine(found, [argument_forms(resolve(parameters["$ref"], root), root, depth + 1)])
    for part in parameters.get("allOf") or ():
        found.unread |= {"allOf"} if isinstance(part, Mapping) and "additionalProperties" in part else set()
        _combine(found, [argument_forms(part, root, depth + 1)])
    for key in ("anyOf", "oneOf"):
        if parameters.get(key):
            found.unread |= {"oneOf"} if key == "oneOf" and len(parameters[key]) > 1 else set()
            _combine(found, [argument_forms(part, root, depth + 1) for part in parameters[key]])
    return found


def _combine(found: ArgumentForms, alternatives: list[ArgumentForms]) -> None:
    """What was found, and one of the alternatives besides."""
    others = [form for alternative in alternatives for form in alternative.forms]
    for alternative in alternatives:
        found.unread |= alternative.unread
    found.forms = [form.with_part(other) for form in found.forms for other in others][:_MAX_FORMS]


@dataclass(slots=True)
class ValueParts:
    """A schema taken apart: schemas of its strings and of its other values; None for what it does not admit.

    is_exact: a value of either part is one of the whole
    """

    strings: list[Any]
    others: list[Any]
    is_exact: bool = True


def value_parts(schema: Any, root: Any, depth: int = 0) -> ValueParts:
    """The parts of `schema`, which lies within `root`."""
    types = json_types(schema, root)
    if "string" not in types:
        return ValueParts([], [schema])
    if types == {"string"} or not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ValueParts([schema] if types == {"string"} else [{"type": "string"}], _others(types))
    if isinstance(schema.get("$ref"), str) and set(schema) <= {"$ref", "description", "title", "default"}:
        return value_parts(resolve(schema["$ref"], root), root, depth + 1)
    if isinstance(schema.get("enum"), list):
        texts = [value for value in schema["enum"] if isinstance(value, str)]
        values = [value for value in schema["enum"] if not isinstance(value, str)]
        return ValueParts([{"enum": texts}] if texts else [], [{"enum": values}] if values else [])
    unions = [key for key in ("anyOf", "oneOf") if schema.get(key)]
    if len(unions) == 1 and not _constraints(schema) - {unions[0], "type"}:
        parts = [value_parts(part, root, depth + 1) for part in schema[unions[0]]]
        strings = [part for found in parts for part in found.strings]
        others = [part for found in parts for part in found.others]
        is_single = unions[0] == "anyOf" or max(len(strings), len(others)) <= 1
        return ValueParts(strings, others, is_single and all(found.is_exact for found in parts))
    if unions or schema.get("allOf") or "not" in schema or "if" in schema or "$ref" in schema:
        return ValueParts([{"type": "string"}], [], is_exact=False)
    text = {key: value for key, value in schema.items() if key in _STRING_KEYWORDS} | {"type": "string"}
    rest = {key: value for key, value in schema.items() if key not in _STRING_KEYWORDS}
    names = sorted(types - {"string"})
    return ValueParts([text], [rest | {"type": _declared(schema, names)}])


def _others(types: frozenset[str]) -> list[Any]:
    names = sorted(types - {"string"})
    return [{"type": names}] if names else []


def _declared(schema: Mapping[str, Any], names: list[str]) -> list[str]:
    """The types but string, as the schema calls them: an integer is no number to it."""
    declared = schema.get("type")
    return [name for name in declared if name != "string"] if isinstance(declared, list) else names


def _constraints(schema: Mapping[str, Any]) -> set[str]:
    return {key for key in schema if key not in ("description", "title", "default", "examples", "$comment")}


