"""What is wrong with a value, by its schema. Knows JSON Schema; never where the value comes from."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator


def first_violation(schema: Any, value: Any, root: Any = None) -> str | None:
    """The first thing that `schema`, a part of `root`, finds wrong with `value`."""
    if root is not None and isinstance(root, dict) and isinstance(schema, dict):
        schema = {**{k: root[k] for k in ("$defs", "definitions") if k in root}, **schema}
    for error in Draft202012Validator(schema).iter_errors(value):
        return f"{error.json_path}: {error.message}"
    return None
