"""A client's JSON Schema, read and checked keyword by keyword. Knows the specification; never grammars.

Draft 2020-12, with draft 7's `definitions`, `dependencies` and lists in `items`. What is not known here is refused, so
that nothing a client relies on is ignored in silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from urllib.parse import unquote

from sparkinfer.errors import RequestError
from sparkinfer.grammar.pattern import PatternError, compiled

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_BOUND = 1_000_000  # of lengths and counts

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
    "contentEncoding", "contentMediaType", "contentSchema", "$defs", "definitions", "format", "$anchor", "$vocabulary",
    # OpenAPI's and editors' own; "nullable" would allow more, so that going without it is no lie
    "example", "externalDocs", "xml", "discriminator", "nullable", "markdownDescription", "enumNames",
    "enumDescriptions", "errorMessage", "deprecationMessage",
})  # fmt: skip
_BY_TYPE = {
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": (
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
        "maxContains",
    ),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
    ),
}  # fmt: skip
OWNER = {keyword: kind for kind, keywords in _BY_TYPE.items() for keyword in keywords}
_SCHEMAS = (
    "items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_MAPS = ("properties", "patternProperties", "dependentSchemas")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties",
)  # fmt: skip
MAXIMA = ("maxLength", "maxItems", "maxProperties")  # beyond MAX_BOUND an answer is not counted, but checked
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OTHERS = ("type", "enum", "const", "$ref", *_LISTS, *_SCHEMAS, "uniqueItems", "required", "dependentRequired")
_KNOWN = ANNOTATIONS | set(OWNER) | set(_OTHERS)
_PAIRS = (
    ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"), ("minimum", "maximum"),
    ("minContains", "maxContains"),
)  # fmt: skip


def fail(path: str, text: str) -> NoReturn:
    """Raise RequestError 400: what stands at `path` cannot be enforced, and why."""
    raise RequestError(400, f"{path}: {text}", param=path, code="invalid_schema")


class SchemaDocument:
    """A schema and what its references point into. Schemas inside it are known by their path."""

    def __init__(self, schema: Any, path: str, root: Any = None) -> None:
        """root: what "#/..." points into; the schema itself when None. Raises RequestError 400."""
        self.root = schema if root is None else root
        self.path = path
        self._num_nodes = 0
        self._checked: set[int] = set()
        self.check(schema, path)

    def check(self, schema: Any, path: str, depth: int = 0) -> None:
        """Check a schema and all within it, except what only a reference leads to."""
        self._num_nodes += 1
        if depth > MAX_DEPTH:
            fail(path, f"schemas may be nested {MAX_DEPTH} deep")
        if self._num_nodes > MAX_NODES:
            fail(path, f"a schema may have {MAX_NODES} parts")
        if isinstance(schema, bool) or id(schema) in self._checked:
            return
        if not isinstance(schema, dict):
            fail(path, "a schema must be an object or a boolean")
        self._checked.add(id(schema))
        check_keywords(schema, path)
        for child, child_path in children(schema, path):
            self.check(child, child_path, depth + 1)

    def resolve(self, reference: Any, path: str) -> tuple[Any, str]:
        """The schema that a $ref at `path` names, checked, and its own path."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            fail(f"{path}.$ref", f"only local references (#/...) are supported, got {reference!r:.100}")
        found = self.root
        for part in reference.split("/")[1:]:
            token = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and token in found:
                found = found[token]
            elif isinstance(found, list) and token.isdecimal() and int(token) < len(found):
                found = found[int(token)]
            else:
                fail(f"{path}.$ref", f"{reference!r:.100} points to nothing")
        path = self.path + ("" if reference == "#" else reference)
        self.check(found, path)
        return found, path


def children(schema: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """The schemas that stand directly in one, with their paths."""
    for keyword in _SCHEMAS:
        if keyword in schema and not isinstance(schema[keyword], list):
            yield schema[keyword], f"{path}.{keyword}"
    for keyword in (*_LISTS, "items"):
        for i, child in enumerate(schema.get(keyword, ()) if isinstance(schema.get(keyword), list) else ()):
            yield child, f"{path}.{keyword}[{i}]"
    for keyword in (*_MAPS, "dependencies"):
        for name, child in schema.get(keyword, {}).items():
            if not (keyword == "dependencies" and isinstance(child, list)):
                yield child, f"{path}.{keyword}.{name}"


def check_keywords(schema: dict[str, Any], path: str) -> None:
    """The keywords of one schema: known, of the right form, and able to mean something together."""
    for keyword, value in schema.items():
        if keyword.startswith("x-") or keyword in ANNOTATIONS or (keyword == "$id" and isinstance(value, str)):
            continue
        if keyword not in _KNOWN:
            fail(path, f"unsupported field {keyword!r:.100}")
        _FORMS.get(keyword, _is_anything)(value, f"{path}.{keyword}")
    _check_types(schema, path)
    for low, high in _PAIRS:
        if low in schema and high in schema and schema[low] > schema[high]:
            fail(path, f"{low} {schema[low]} is greater than {high} {schema[high]}")
    _check_required(schema, path)


def types_of(schema: dict[str, Any]) -> frozenset[str] | None:
    """What `type` allows, None where it says nothing."""
    kinds = schema.get("type")
    return None if kinds is None else frozenset([kinds] if isinstance(kinds, str) else kinds)


def _check_types(schema: dict[str, Any], path: str) -> None:
    kinds = types_of(schema)
    if kinds is None:
        return
    for keyword in schema:
        owner = OWNER.get(keyword)
        if owner is not None and owner not in kinds and not (owner == "number" and "integer" in kinds):
            fail(path, f"{keyword} says nothing about type {schema['type']!r}")


def _check_required(schema: dict[str, Any], path: str) -> None:
    required = schema.get("required", [])
    if len(set(required)) < len(required):
        fail(f"{path}.required", "names a property twice")
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        unknown = next((name for name in required if name not in schema.get("properties", {})), None)
        if unknown is not None:
            fail(f"{path}.required", f"{unknown!r:.100} is forbidden by additionalProperties")


def _is_anything(value: Any, path: str) -> None:
    pass


def _is_schema_or_list(value: Any, path: str) -> None:
    if not isinstance(value, dict | bool | list):
        fail(path, "must be a schema")


def _is_schema(value: Any, path: str) -> None:
    if not isinstance(value, dict | bool):
        fail(path, "must be a schema")


def _is_schema_list(value: Any, path: str) -> None:
    if not isinstance(value, list) or not value:
        fail(path, "must be a list of schemas that is not empty")


def _is_map(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        fail(path, "must be an object")


def _is_pattern_map(value: Any, path: str) -> None:
    _is_map(value, path)
    for pattern in value:
        _is_pattern(pattern, f"{path}.{pattern}")


def _is_count(value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        fail(path, "must be an integer of 0 or more")
    if value > MAX_BOUND and not path.rpartition(".")[2].startswith("max"):
        fail(path, f"may be {MAX_BOUND} at most")


def _is_number(value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        fail(path, "must be a number")
    if path.endswith(".multipleOf") and value <= 0:
        fail(path, "must be greater than 0")


def _is_pattern(value: Any, path: str) -> None:
    if not isinstance(value, str):
        fail(path, "must be a string")
    try:
        compiled(value)
    except PatternError as error:
        fail(path, str(error))


def _is_type(value: Any, path: str) -> None:
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not kinds or any(kind not in TYPES for kind in kinds):
        fail(path, f"must be one of {', '.join(TYPES)}, or a list of them")


def _is_enum(value: Any, path: str) -> None:
    if not isinstance(value, list) or not value:
        fail(path, "must be a list of values that is not empty")


def _is_flag(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        fail(path, "must be true or false")


def _is_name_list(value: Any, path: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        fail(path, "must be a list of strings")


def _is_name_lists(value: Any, path: str) -> None:
    _is_map(value, path)
    for name, names in value.items():
        if isinstance(names, list) or path.endswith(".dependentRequired"):
            _is_name_list(names, f"{path}.{name}")


_FORMS: dict[str, Callable[[Any, str], None]] = {
    **dict.fromkeys(_SCHEMAS, _is_schema),
    **dict.fromkeys(_LISTS, _is_schema_list),
    **dict.fromkeys(_MAPS, _is_map),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_BOUNDS, _is_number),
    "items": _is_schema_or_list,
    "pattern": _is_pattern,
    "patternProperties": _is_pattern_map,
    "type": _is_type,
    "enum": _is_enum,
    "uniqueItems": _is_flag,
    "required": _is_name_list,
    "dependentRequired": _is_name_lists,
    "dependencies": _is_name_lists,
}
