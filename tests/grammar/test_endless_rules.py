"""Rules that go on for ever are found, before a mask of theirs is computed for ever."""

from __future__ import annotations

import pytest
from llguidance.gbnf_to_lark import any_to_lark

from sparkinfer.errors import RequestError
from sparkinfer.grammar.client_grammar import lark_rule
from sparkinfer.grammar.endless_rules import endless_rules


@pytest.mark.parametrize(("lark", "names"), [
    ("start: /a+/ start", ["start"]),
    ('start: /[a-z]{40}/ x | "q"\nx: /a+/ x', ["x"]),
    ('start: a | "b"\na: "x" a\nb: "x" b?', ["a"]),
    ('start: (start | "a") "b"', []),
    ('start: (start "b")', ["start"]),
    ('start: (start "b")*', []),
    ('start: [start] "b"', []),
    ('start: "x" (start "b" | start)+', ["start"]),
    ("start: x~0..3\nx: x", ["x"]),
    ('start: x~2\nx: "a" y\ny: "b" x | "c"', []),
    ('?start: x{0,3} "i"i // start\nx: "a"\n | x x', []),
    ('start: x{1,3}\nx: "a" x', ["start", "x"]),
    ('start: A\nA: "a".."z" | B\nB: /x/i', []),
    ('start: a\n%import common.WS\na: a "x"\n  | "y" -> foo', []),
    ("start: (((start)))", ["start"]),
    ("start: x |\nx: x", ["x"]),
    ('start[capture]: x "a"\nx.2: x', ["start", "x"]),
    ('start: %json {"a": 1} start', []),  # not understood
    ("start: )", []),
    (any_to_lark('root ::= "a" root | x\nx ::= [a-z]+ x'), ["start", "x"]),
    ("start: " + "(" * 100_000 + "start" + ")" * 100_000, ["start"]),
    ("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000)) + 'r3000: "a"', []),
])  # fmt: skip
def test_names(lark: str, names: list[str]) -> None:
    assert endless_rules(lark) == names


@pytest.mark.parametrize(("grammar", "words"), [
    ('start: /[a-z]{40}/ x | "q"\nx: /a+/ x', "the rule 'x'"),
    ('root ::= "a" root', "the rule 'start'"),
    ("start: %lark { start: /a+/ start }", "%lark is not supported"),
])  # fmt: skip
def test_they_are_refused(grammar: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        lark_rule(grammar, "grammar")
    assert (caught.value.status, caught.value.param) == (400, "grammar")


def test_a_directive_in_a_string_is_text() -> None:
    assert "%lark" in lark_rule('start: "%lark"', "grammar").text
