"""The checker finds what the specification finds, whatever a client's schema would cost to check."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.grammar.checker import first_violation
from sparkinfer.grammar.safe_match import has_match

TREE = {"$ref": "#/$defs/n", "$defs": {"n": {"oneOf": [
    {"type": "integer"},
    {"type": "object", "properties": {"k": {"$ref": "#/$defs/n"}, "t": {"const": "x"}}, "required": ["t"]},
    {"type": "object", "properties": {"k": {"$ref": "#/$defs/n"}, "t": {"const": "y"}}, "required": ["t"]},
]}}}  # fmt: skip
PATTERNS = ["a", "^a", "b$", "^(a|b)*c$", "^[^b]+$", "a.c", "^(?=.*a)b", "^(?!b).", "\\d{2}", "^$", "x|^y$"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"k": value, "t": "y"}
    return value


@pytest.mark.parametrize(("schema", "value"), [
    ({"type": "string", "not": {"pattern": "^(a|a)*b$"}}, "a" * 50),
    ({"type": "object", "patternProperties": {"^(a|a)*b$": False}}, {"a" * 50: 1}),
    ({"patternProperties": {"^(a|a)*b$": {}}, "additionalProperties": True}, {"a" * 50: 1}),
    (TREE, nested(3)),
    ({"uniqueItems": True}, [{"a": i} for i in range(3000)]),
    ({"$defs": {"x": {"if": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}, 1),
    ({"uniqueItems": True}, [1, True, 0, False, "1", None, [], {}]),
])  # fmt: skip
def test_what_is_valid_is_soon_known_to_be(schema: Any, value: Any) -> None:
    assert first_violation(schema, value) is None


@pytest.mark.parametrize(("schema", "value", "words"), [
    ({"type": "string", "pattern": "^(a|a)*b$"}, "a" * 50, "does not match"),
    ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"ab": 1, "b": 1}, "not expected"),
    ({"additionalProperties": {"type": "integer"}}, {"b": "x"}, "integer"),
    (TREE, nested(60), "cannot be checked in time"),
    ({"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, True]}}, "$ref": "#/$defs/x"}, 1, "cannot be checked in time"),
    ({"uniqueItems": True}, [1, {"a": [1]}, {"a": [1.0]}], "not unique"),
    ({"uniqueItems": True}, [1, 1.0], "not unique"),
])  # fmt: skip
def test_what_is_wrong_or_takes_too_long_is_found(schema: Any, value: Any, words: str) -> None:
    problem = first_violation(schema, value)
    assert problem is not None
    assert words in problem


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PATTERNS), st.text("abcxy1\n\ud800é", max_size=6))
def test_matches_are_what_regular_expressions_match(pattern: str, text: str) -> None:
    if "\ud800" in text:
        assert not has_match(pattern, text)
    elif "$" not in pattern or not text.endswith("\n"):  # Python's $ stands before a last newline, ECMA's does not
        assert has_match(pattern, text) == (re.search(pattern, text) is not None)
