"""Properties that tell the alternatives of a oneOf apart at a glance. Knows keywords; never references or shapes."""

from __future__ import annotations

from typing import Any

Marks = dict[str, frozenset[tuple[bool, Any]]]  # values that required properties may have, by name


def told_apart_by(schema: Any) -> Marks:
    """What every value of a schema has for sure; nothing if that does not show.

    >>> told_apart_by({"type": "object", "properties": {"kind": {"const": "a"}, "x": {}}, "required": ["kind", "x"]})
    {'kind': frozenset({(False, 'a')})}
    """
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return {}
    properties = schema.get("properties", {})
    found: Marks = {}
    for name in schema.get("required", ()):
        child = properties.get(name)
        if isinstance(child, dict):
            values = [child["const"]] if "const" in child else child.get("enum")
            if values and not any(isinstance(value, list | dict) for value in values):
                found[name] = frozenset((isinstance(value, bool), value) for value in values)
    return found


def are_apart(left: Marks, right: Marks) -> bool:
    """Whether no value has both."""
    return any(name in right and values.isdisjoint(right[name]) for name, values in left.items())
