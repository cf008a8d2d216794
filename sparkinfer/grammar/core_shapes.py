"""The keywords that speak of one type each, as shapes. Knows keywords; never those that combine schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from sparkinfer.grammar.formats import format_pattern
from sparkinfer.grammar.negation import NOT_PATTERN, NOT_VALUES
from sparkinfer.grammar.schema_document import MAX_BOUND, types_of
from sparkinfer.grammar.shapes import (
    ArrayShape,
    ArraySource,
    LiteralShape,
    NumberShape,
    ObjectShape,
    ObjectSource,
    Part,
    Shape,
    StringShape,
)

MakePart = Callable[[Any, str], Part]
_KINDS = ("null", "boolean", "number", "string", "array", "object")


def core_shapes(cores: Sequence[Part], make_part: MakePart) -> list[Shape]:
    """One shape for each type that `cores` allow together.

    cores:      schemas whose keywords of one type are meant; what they combine is somebody else's business
    make_part:  from a schema and its path
    """
    kinds = set(_KINDS)
    is_integer = False
    for core in cores:
        named = types_of(core.schema)
        if named is not None:
            kinds &= named | ({"number"} if "integer" in named else set())
            is_integer |= "number" not in named
    excluded = [value for core in cores for value in core.schema.get(NOT_VALUES, ())]
    shapes: list[Shape] = []
    constants: list[Any] = [value for kind, value in (("null", None), ("boolean", True), ("boolean", False))
                            if kind in kinds and not _is_among(value, excluded)]
    if constants:
        shapes.append(LiteralShape(tuple(constants)))
    if "number" in kinds:
        shapes.append(_number(cores, is_integer, excluded))
    if "string" in kinds:
        shapes.append(_string(cores, excluded))
    if "array" in kinds:
        shapes.append(_array(cores, make_part))
    if "object" in kinds:
        shapes.append(_object(cores, make_part))
    return [shape for shape in shapes if isinstance(shape, LiteralShape) or not shape.is_empty]


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    """JSON's equality: true is not 1."""
    return any(value is other for other in values if isinstance(other, bool) or other is None)


def _number(cores: Sequence[Part], is_integer: bool, excluded: list[Any]) -> NumberShape:
    shape = NumberShape(is_integer)
    shape.excluded = [v for v in excluded if isinstance(v, int | float) and not isinstance(v, bool)]
    for core in cores:
        schema = core.schema
        for keyword, is_open in (("minimum", False), ("exclusiveMinimum", True)):
            if keyword in schema:
                shape.at_least(Decimal(repr(schema[keyword])), is_open)
        for keyword, is_open in (("maximum", False), ("exclusiveMaximum", True)):
            if keyword in schema:
                shape.at_most(Decimal(repr(schema[keyword])), is_open)
        if "multipleOf" in schema:
            shape.multiples.append(Decimal(repr(schema["multipleOf"])))
            shape.path = f"{core.path}.multipleOf"
    return shape


def _smaller(most: int | None, other: float | None) -> int | None:
    """The limit of two, each of which may be none at all; one beyond MAX_BOUND is none either."""
    if other is None or other > MAX_BOUND:
        return most
    return int(other) if most is None else min(most, int(other))


def _string(cores: Sequence[Part], excluded: list[Any]) -> StringShape:
    shape = StringShape(excluded=[value for value in excluded if isinstance(value, str)])
    for core in cores:
        schema, path = core.schema, core.path
        shape.min_length = max(shape.min_length, int(schema.get("minLength", 0)))
        for keyword in ("minLength", "maxLength"):
            shape.path = f"{path}.{keyword}" if keyword in schema else shape.path
        shape.max_length = _smaller(shape.max_length, schema.get("maxLength"))
        if "pattern" in schema:
            shape.patterns.append((schema["pattern"], f"{path}.pattern"))
        form = format_pattern(schema["format"]) if isinstance(schema.get("format"), str) else None
        if form is not None:
            shape.patterns.append((form, f"{path}.format"))
        shape.not_patterns += [(pattern, path) for pattern in schema.get(NOT_PATTERN, ())]
    return shape


def _array(cores: Sequence[Part], make_part: MakePart) -> ArrayShape:
    shape = ArrayShape()
    for core in cores:
        schema, path = core.schema, core.path
        shape.min_items = max(shape.min_items, int(schema.get("minItems", 0)))
        shape.max_items = _smaller(shape.max_items, schema.get("maxItems"))
        if schema.get("uniqueItems"):
            shape.unique_path = path
        items, keyword = schema.get("items"), "prefixItems"
        prefix = schema.get("prefixItems", ())
        if isinstance(items, list):
            prefix, items, keyword = items, schema.get("additionalItems"), "items"
        if prefix or items is not None:
            shape.sources.append(ArraySource(
                tuple(make_part(child, f"{path}.{keyword}[{i}]") for i, child in enumerate(prefix)),
                None if items is None else make_part(items, f"{path}.items"),
            ))
    return shape


def _object(cores: Sequence[Part], make_part: MakePart) -> ObjectShape:
    shape = ObjectShape()
    for core in cores:
        schema, path = core.schema, core.path
        shape.required += [name for name in schema.get("required", ()) if name not in shape.required]
        if schema.get("minProperties", 0) > shape.min_properties:
            shape.min_properties, shape.path = int(schema["minProperties"]), path
        if "maxProperties" in schema:
            shape.max_properties, shape.path = _smaller(shape.max_properties, schema["maxProperties"]), path
        if "propertyNames" in schema:
            shape.names.append(make_part(schema["propertyNames"], f"{path}.propertyNames"))
        if schema.keys() & {"properties", "patternProperties", "additionalProperties"}:
            shape.sources.append(_object_source(schema, path, make_part))
    return shape


def _object_source(schema: dict[str, Any], path: str, make_part: MakePart) -> ObjectSource:
    properties = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    return ObjectSource(
        {name: make_part(child, f"{path}.properties.{name}") for name, child in properties.items()},
        tuple(
            (pattern, f"{path}.patternProperties", make_part(child, f"{path}.patternProperties.{pattern}"))
            for pattern, child in schema.get("patternProperties", {}).items()
        ),
        None if additional is None else make_part(additional, f"{path}.additionalProperties"),
    )
