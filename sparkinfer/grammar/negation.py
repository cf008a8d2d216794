"""What a schema forbids, as schemas. Knows keywords; never shapes or grammars.

Each result is a set of schemas of which any one is enough not to be valid. Where a keyword's opposite cannot be said
(some item is no integer), it is left out: what is left forbids too much, never too little.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from sparkinfer.grammar.schema_document import MAX_BOUND, TYPES, types_of

# Keywords of our own, which no client can send: their names are not checked.
NOT_PATTERN, NOT_VALUES = "\0notPattern", "\0notValues"

_OPPOSITES = {
    "minimum": ("number", "exclusiveMaximum"),
    "maximum": ("number", "exclusiveMinimum"),
    "exclusiveMinimum": ("number", "maximum"),
    "exclusiveMaximum": ("number", "minimum"),
    "pattern": ("string", NOT_PATTERN),
}
_UNSAID = frozenset({
    "multipleOf", "format", "items", "additionalItems", "prefixItems", "contains", "minContains", "maxContains",
    "uniqueItems", "additionalProperties", "patternProperties", "propertyNames", "dependencies", "dependentRequired",
    "dependentSchemas", "$ref",
})  # fmt: skip
_MAX_PAIRED = 6  # alternatives of a oneOf, any two of which may hold together
_COUNTS = {"Length": "string", "Items": "array", "Properties": "object"}


def negated(schema: dict[str, Any]) -> list[list[Any]]:
    """Alternatives, each a list of schemas that have to hold together.

    schema: an object; what its $ref says is somebody else's business
    """
    found: list[list[Any]] = [[alternative] for alternative in _of_values(schema)]
    for keyword, (kind, opposite) in _OPPOSITES.items():
        if keyword in schema:
            value = [schema[keyword]] if opposite == NOT_PATTERN else schema[keyword]
            found.append([{"type": kind, opposite: value}])
    for name, kind in _COUNTS.items():
        low, high = schema.get(f"min{name}", 0), schema.get(f"max{name}")
        if low:
            found.append([{"type": kind, f"max{name}": low - 1}])
        if high is not None and high < MAX_BOUND:
            found.append([{"type": kind, f"min{name}": int(high) + 1}])
    found += _of_properties(schema)
    found += _of_applicators(schema)
    return found


def is_complete(schema: Any) -> bool:
    """Whether what `negated` finds is everything that a schema forbids."""
    if isinstance(schema, bool):
        return True
    if schema.keys() & _UNSAID or len(schema.get("oneOf", ())) > _MAX_PAIRED:
        return False
    kinds = types_of(schema)
    if kinds is not None and "integer" in kinds and "number" not in kinds:
        return False
    if any(isinstance(v, list | dict) for v in (*schema.get("enum", ()), schema.get("const"))):
        return False
    children = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("allOf", ())]
    children += schema.get("oneOf", ())
    children += [schema[keyword] for keyword in ("not", "if", "then", "else") if keyword in schema]
    return all(is_complete(child) for child in children)


def _of_values(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kinds = types_of(schema)
    if kinds is not None:
        others = [kind for kind in TYPES if kind not in kinds and not (kind == "integer" and "number" in kinds)]
        if "integer" in kinds:
            others = [kind for kind in others if kind != "number"]  # numbers that are no integers
        if others:
            yield {"type": others}
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if values is not None:
            compound = {"array" if isinstance(v, list) else "object" for v in values if isinstance(v, list | dict)}
            yield {"type": [kind for kind in TYPES if kind not in compound], NOT_VALUES: values}


def _of_properties(schema: dict[str, Any]) -> Iterator[list[Any]]:
    for name in schema.get("required", ()):
        yield [{"type": "object", "properties": {name: False}}]
    for name, child in schema.get("properties", {}).items():
        yield [{"type": "object", "required": [name], "properties": {name: {"not": child}}}]


def _of_applicators(schema: dict[str, Any]) -> Iterator[list[Any]]:
    if "anyOf" in schema:
        yield [{"not": child} for child in schema["anyOf"]]
    if "oneOf" in schema:
        yield [{"not": child} for child in schema["oneOf"]]
        if len(schema["oneOf"]) <= _MAX_PAIRED:
            yield from map(list, itertools.combinations(schema["oneOf"], 2))
    if "contains" in schema and not schema.keys() & {"minContains", "maxContains"}:
        yield [{"type": "array", "items": {"not": schema["contains"]}}]
    for child in schema.get("allOf", ()):
        yield [{"not": child}]
    if "not" in schema:
        yield [schema["not"]]
    if "if" in schema:
        if "then" in schema:
            yield [schema["if"], {"not": schema["then"]}]
        if "else" in schema:
            yield [{"not": schema["if"]}, {"not": schema["else"]}]
