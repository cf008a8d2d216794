"""Grammars that clients write: characters by their numbers in GBNF, as llama.cpp has them."""

from __future__ import annotations

import pytest

from sparkinfer.errors import RequestError
from sparkinfer.grammar.client_grammar import lark_rule
from sparkinfer.grammar.matcher import Matcher
from sparkinfer.grammar.output_grammar import assemble
from sparkinfer.grammar.tokenizer_adapter import byte_tokenizer

TOKENIZER = byte_tokenizer(())


def takes(grammar: str, text: str) -> bool:
    start = Matcher.compile(assemble({"start": lark_rule(grammar, "grammar")}), TOKENIZER)
    return start.takes_whole(list(text.encode()))


@pytest.mark.parametrize(("grammar", "good", "bad"), [
    (r'root ::= "\u00e9"', "é", "e"),
    (r'root ::= "\u0041\xe9"', "Aé", "A"),
    (r"root ::= [\u0041-\u0043]", "B", "D"),
    (r"root ::= [\U0001F600-\U0001F64F]+", "😀😁", "a"),
    (r"root ::= [^\u005d\u002f\u005b\u0022]+", "ab", "a]"),
    (r"root ::= [\u005d\u002f\u005b\u0022\u005c\u002d]+", '/]["\\-', "a"),
    (r'root ::= "\u0022\u005c\u002f\u000a"', '"\\/\n', "n"),
    (r'root ::= "\\u0041"', r"\u0041", "A"),
    (r'root ::= "\n" [\x41-\x43]', "\nB", "nB"),
])  # fmt: skip
def test_characters_by_their_numbers(grammar: str, good: str, bad: str) -> None:
    assert takes(grammar, good)
    assert not takes(grammar, bad)


@pytest.mark.parametrize("escape", [r"\ud83d", r"\U00110000", r"\u12", r"\q"])
def test_what_is_no_character_is_refused(escape: str) -> None:
    with pytest.raises(RequestError) as caught:
        lark_rule(f'root ::= "{escape}"', "grammar")
    assert (caught.value.status, caught.value.param) == (400, "grammar")


def test_schemas_within_a_grammar() -> None:
    grammar = 'start: "a" %json {"type": "array", "items": {"enum": ["} start", 1]}} // %json\n | x\nx: "%json" x?'
    for good in ("a[1]", 'a[1,"} start"]', "%json%json"):
        assert takes(grammar, good)
    assert not takes(grammar, "a[2]")


@pytest.mark.parametrize(("grammar", "words"), [
    ('start: "a" %json {"$ref": "#"}', "leads back to here"),
    ('start: %json {"$defs": {"a": {"required": ["x"], "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}}, '
     '"$ref": "#/$defs/a"}', "no value satisfies it"),
    ('start: %json {"type": "integer"} start', "the rule 'start' goes on for ever"),
    ("start: %json {oops}", "not followed by a schema"),
    ("start: %json", "not followed by a schema"),
    ("start: %json " + "[" * 100_000, "not followed by a schema"),
])  # fmt: skip
def test_schemas_that_no_answer_follows(grammar: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        lark_rule(grammar, "grammar")
    assert caught.value.status == 400
