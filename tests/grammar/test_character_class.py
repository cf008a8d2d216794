r"""\d, \w, \s and what is none of them: what grammars admit satisfies patterns as ECMA has them and as Python does."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparkinfer.errors import RequestError
from sparkinfer.grammar.json_schema import json_rule
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import assemble
from sparkinfer.grammar.safe_match import has_match
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer

TOKENIZER = byte_tokenizer(())
ECMA_SPACE = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
DISPUTED = "\x1c\x1f\x85\ufeff\u0663\uff11é²ßЖ中\U00020000\U0001d7d9\u0345"
CHARACTERS = DISPUTED + "x_0 \t\n\r-.\xa0\u2028\u3000\u200b…€、😀\xb5\x7f\xd7"
ITEMS = [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "é", "x", "\x85"]
IN_ECMA = {
    "d": lambda c: c in "0123456789",
    "w": lambda c: c.isascii() and (c.isalnum() or c == "_"),
    "s": lambda c: c in ECMA_SPACE,
}


def is_in_ecma(negated: bool, items: list[str], character: str) -> bool:
    found = False
    for item in items:
        if item[0] == "\\":
            found |= IN_ECMA[item[1].lower()](character) != item[1].isupper()
        else:
            found |= item == character
    return found != negated


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3))
@example(True, [r"\s"])
@example(True, [r"\S"])
@example(True, [r"\s", r"\S"])
@example(False, [r"\s", r"\S"])
def test_a_class_admits_what_both_do_and_its_opposite_what_neither_does(negated: bool, items: list[str]) -> None:
    pattern = f"^[{'^' * negated}{''.join(items)}]$"
    for character in CHARACTERS:
        in_both = re.search(pattern[:-1] + r"\Z", character) is not None and is_in_ecma(negated, items, character)
        in_neither = re.search(pattern[:-1] + r"\Z", character) is None and not is_in_ecma(negated, items, character)
        if has_match(pattern, character):
            assert in_both, (pattern, character)
        if has_match(f"^(?!{pattern[1:]}).{{0,}}$", character):
            assert in_neither, (pattern, character)


def one_character(schema: object) -> Matcher:
    rule = json_rule(schema, "$")
    return Matcher.compile(assemble({"start": rule}), TOKENIZER)


@pytest.mark.parametrize("pattern", [
    r"^[^\s]$", r"^\S$", r"^[^\S]$", r"^\s$", r"^\D$", r"^[^\d]$", r"^\d$", r"^\W$", r"^[^\w]$", r"^\w$",
    r"^.$", r"^[^\D]$",
])  # fmt: skip
def test_answers_satisfy_both(pattern: str) -> None:
    schema, opposite = {"type": "string", "pattern": pattern}, {"type": "string", "not": {"pattern": pattern}}
    start, other = one_character(schema), one_character(opposite)
    inner = pattern[1:-1].strip("[]")
    is_negated = inner[0] == "^"
    for character in CHARACTERS:
        text = list(json.dumps(character, ensure_ascii=False).encode())
        if start.copy().takes_whole(text):
            assert Draft202012Validator(schema).is_valid(character), character
            assert inner == "." or is_in_ecma(is_negated, [inner.removeprefix("^")], character), character
        if other.copy().takes_whole(text):
            assert Draft202012Validator(opposite).is_valid(character), character
            assert inner == "." or not is_in_ecma(is_negated, [inner.removeprefix("^")], character), character


@pytest.mark.parametrize(("pattern", "admitted"), [
    (r"^[\s\S]$", CHARACTERS), (r"^[\w\W]$", CHARACTERS), (r"^[\d\D]$", CHARACTERS), (r"^[^\s]$", "xé中😀\u200b"),
    (r"^\s$", " \t\n\xa0\u2028\u3000"), (r"^\W$", "-.…€、😀\xd7 "), (r"^\D$", "xé中😀²"),
])  # fmt: skip
def test_what_nobody_disputes_is_admitted(pattern: str, admitted: str) -> None:
    start = one_character({"type": "string", "pattern": pattern})
    for character in admitted:
        assert start.copy().takes_whole(list(json.dumps(character, ensure_ascii=False).encode())), character


@pytest.mark.parametrize("pattern", [r"^[^\s\S]$", r"^[^\d\D]$", r"^[^\w\W]$", r"^a[^\S\s]{2}b$"])
def test_a_class_of_nothing_is_refused(pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    with pytest.raises(RequestError) as caught:
        json_rule(schema, "$")
    assert (caught.value.status, caught.value.param) == (400, "$.properties.a")
