"""JSON Schema as rules: what walks through the masks bring is valid, what is valid gets through, the rest is named."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sparkinfer.errors import RequestError
from sparkinfer.grammar.checker import first_violation
from sparkinfer.grammar.json_schema import json_rule
from sparkinfer.grammar.output_grammar import assemble
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer
from tests.grammar.refused_schemas import REFUSED
from tests.grammar.schema_corpus import APPROXIMATED, ENFORCED
from tests.grammar.walks import Walker

NUM_WALKS = 12


@pytest.fixture(scope="module")
def walker() -> Walker:
    return Walker(byte_tokenizer(()), lambda token: bytes([token]) if token < 256 else b"")


def spellings(value: Any) -> list[str]:
    """A value as models write it: compact, with blanks, over several lines."""
    return [
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, indent=2),
    ]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), ENFORCED, ids=[json.dumps(case[0])[:90] for case in ENFORCED])
def test_schema_is_enforced(walker: Walker, schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    rule = json_rule(schema, "$")
    assert rule.approximations == ()
    start = walker.compile(assemble({"start": rule}))
    for value in valid:
        assert first_violation(schema, value) is None, value
        for text in spellings(value):
            assert walker.accepts(start, list(text.encode())), text
    for value in invalid:
        assert first_violation(schema, value) is not None, value
        assert not walker.accepts(start, list(spellings(value)[0].encode())), value
    for number in range(NUM_WALKS):
        tokens = walker.walk(start, num_free=5 * number, num_steps=300)
        if tokens is not None:
            value = json.loads(walker.bytes(tokens).decode())
            assert first_violation(schema, value) is None, value


@pytest.mark.parametrize(("schema", "expected"), APPROXIMATED)
def test_what_cannot_be_held_is_named(walker: Walker, schema: Any, expected: str) -> None:
    rule = json_rule(schema, "$")
    assert rule.approximations == (expected,)
    start = walker.compile(assemble({"start": rule}))
    for number in range(NUM_WALKS):
        tokens = walker.walk(start, num_free=5 * number, num_steps=300)
        assert tokens is None or json.loads(walker.bytes(tokens).decode()) is not None


@pytest.mark.parametrize(("schema", "path", "words"), REFUSED, ids=[json.dumps(case[0])[:90] for case in REFUSED])
def test_refusals_name_the_place(schema: Any, path: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        json_rule(schema, "$")
    assert caught.value.status == 400
    assert caught.value.param == path
    assert words in caught.value.message


@pytest.mark.parametrize("depth", [3, 8, 70])
def test_bombs_end_soon(depth: int) -> None:
    """They compile or are refused; a deadline is kept elsewhere."""
    def nested(level: int) -> dict[str, Any]:
        return {"oneOf": [nested(level - 1)] * 3} if level else {"type": "null"}

    deep: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        deep = {"type": "array", "items": deep}
    for schema in (nested(depth) if depth < 9 else deep, deep):
        with contextlib.suppress(RequestError):
            assert json_rule(schema, "$").helpers


def test_a_description_never_reaches_the_grammar() -> None:
    plain = json_rule({"type": "object", "properties": {"a": {"type": "integer"}}}, "$").helpers.values()
    for text in ("<", '"', "\n", "</tool_call>", "😀", "x" * 10_000, "%json {", "/*"):
        schema = {"type": "object", "description": text, "properties": {"a": {"type": "integer", "description": text}}}
        rule = json_rule(schema, "$")
        assert len(rule.helpers) == len(plain)
        assert text not in "".join(rule.helpers.values()) or len(text) < 3


def test_a_surrogate_pair_in_a_pattern_is_its_character(walker: Walker) -> None:
    schema = {"type": "string", "pattern": r"^[ab]\uD83D\uDE00$"}
    start = walker.compile(assemble({"start": json_rule(schema, "$")}))
    assert walker.accepts(start, list('"a😀"'.encode()))
    assert not walker.accepts(start, list(b'"a"'))
    assert first_violation(schema, "a😀") is None
    assert first_violation(schema, "a😁") is not None


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1E+1000", "01", "1.", ".5", "+1", "NaN", "Infinity"])
def test_numbers_that_are_none(walker: Walker, number: str) -> None:
    start = walker.compile(assemble({"start": json_rule({"type": "number"}, "$")}))
    assert not walker.accepts(start, list(number.encode()))


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00\\ud800"', '"\x01"', "\"\\x41\"", '"a', "'a'"])
def test_strings_that_are_none(walker: Walker, text: str) -> None:
    start = walker.compile(assemble({"start": json_rule({"type": "string"}, "$")}))
    assert not walker.accepts(start, list(text.encode()))


def test_strings_in_any_spelling(walker: Walker) -> None:
    start = walker.compile(assemble({"start": json_rule({"type": "string"}, "$")}))
    for text in ('"\\u003c\\u00E9"', '"\\ud83d\\ude00"', '"\\/\\b"', '"<tool_call>"'):
        assert walker.accepts(start, list(text.encode())), text


def test_an_excluded_string_does_not_come_back_in_another_spelling(walker: Walker) -> None:
    start = walker.compile(assemble({"start": json_rule({"type": "string", "not": {"const": "ab"}}, "$")}))
    for text in ('"ab"', '"\\u0061b"', '"a\\u0062"'):
        assert not walker.accepts(start, list(text.encode())), text


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"pattern": "^[a-c]+$", "maxLength": 3}, ["a", "abc"], ["", "abca", "abd"]),
        ({"pattern": "^[a-c]{2,9}$", "minLength": 1, "maxLength": 4}, ["ab", "abca"], ["a", "abcab"]),
        ({"pattern": "^[a-c]{0,2}$", "minLength": 2}, ["ab"], ["a", "", "abc"]),
        ({"pattern": "^.*?$", "minLength": 1}, ["a", '"', "\t"], ["", "\n", "a\n"]),
        ({"pattern": "^[^a]*$", "maxLength": 2, "not": {"const": "bb"}}, ["", "b", "bc", "\n\\"], ["bb", "ab", "bcd"]),
        ({"pattern": "^(?:ab)*$", "maxLength": 3}, ["", "ab"], ["a", "abab"]),
        ({"pattern": "[a-c]+", "maxLength": 3}, ["a", "xay"], ["", "x", "xxxa"]),
    ],
)
def test_patterns_and_lengths_hold_together(
    walker: Walker, schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    start = walker.compile(assemble({"start": json_rule({"type": "string"} | schema, "$")}))
    for text in valid + invalid:
        assert walker.accepts(start, list(json.dumps(text).encode())) == (text in valid), text


def test_whitespace_is_bounded(walker: Walker) -> None:
    start = walker.compile(assemble({"start": json_rule({"type": "object"}, "$")}))
    assert not walker.accepts(start, list(b"{" + b"\n" * 4 + b"}"))
    assert not walker.accepts(start, list(b"{}\n"))
    assert not walker.accepts(start, list(b" {}"))


def test_nothing_but_the_end_follows_the_last_brace(walker: Walker) -> None:
    matcher = walker.compile(assemble({"start": json_rule({"type": "object"}, "$")}))
    for token in b"{}":
        matcher.accept(token)
    assert matcher.is_accepting
    assert matcher.is_over
    assert set(walker.allowed(matcher).tolist()) == walker.stops


def test_draft_7_and_2020_agree_with_the_library(walker: Walker) -> None:
    """The checker is the library's, but for what its docstring says."""
    for schema, valid, invalid in ENFORCED:
        if any(text in json.dumps(schema) for text in ("multipleOf", "\"items\": [", "(?<", "dependencies")):
            continue
        for value in [*valid, *invalid]:
            ours, theirs = first_violation(schema, value), Draft202012Validator(schema).is_valid(value)
            assert (ours is None) == theirs or "format" in schema, (schema, value)


@pytest.mark.parametrize(("form", "value"), [
    ("email", "a.b.c.d+e@mail.sub.sub.sub.example.com"), ("hostname", "a.b.c.d.e.f.example.com"),
    ("uri", "mailto:ann@example.com"), ("uri", "https://ann:pw@a.b.c.d.e.example.com:65535/x"), ("date", "2024-02-29"),
])  # fmt: skip
def test_what_others_wrote_may_be_longer_than_what_grammars_write(form: str, value: str) -> None:
    assert first_violation({"type": "string", "format": form}, value) is None
