"""Muse Glimmer's segments, independent of how the reply is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.segment_parser import SegmentParser


def feed(pieces: list[str]) -> tuple[str, str]:
    parser = SegmentParser()
    deltas = [*map(parser.push, pieces), parser.flush()]
    return "".join(reasoning for reasoning, _ in deltas), "".join(content for _, content in deltas)


@pytest.mark.parametrize(("text", "reasoning", "content"), [
    (" to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes", "hm", "yes"),
    (" to=user<|message|>yes", "", "yes"),
    ("<|message|>yes", "", "yes"),
    (" to=self<|message|>a<|eom|><|start|>assistant to=self<|message|>b<|start|>assistant<|message|>c", "ab", "c"),
    (" to=self<|message|>cut off <|eo", "cut off <|eo", ""),
    (" to=self<|message|>hm<|eom|>\n<|start|>assistant to=us", "hm", ""),
    ("no header at all", "", "no header at all"),
    ("to be or not", "", "to be or not"),
    ("assistant<|message|>yes", "", "yes"),
    (" to=self" + " " * 300 + "<|message|>x", "", " to=self" + " " * 300 + "<|message|>x"),
    ("assistance is near", "", "assistance is near"),
    (" to=user<|message|>a < b <|end <|message|> c", "", "a < b <|end <|message|> c"),
    ("", "", ""),
])
def test_cases(text: str, reasoning: str, content: str) -> None:
    assert feed([text]) == (reasoning, content)
    assert feed(list(text)) == (reasoning, content)


PIECES = st.lists(st.sampled_from([
    "<|start|>", "<|message|>", "<|eom|>", "assistant", " to=self", " to=user", "a", " ", "\n", "<|", "<", "start|>",
    "to=",
]))


@settings(max_examples=1500, deadline=None)
@given(PIECES)
def test_result_does_not_depend_on_the_cuts(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert feed(pieces) == feed([text]) == feed(list(text))


def test_body_is_not_held_back() -> None:
    parser = SegmentParser()
    assert [parser.push(piece) for piece in (" to", "=self", "<|message|>")] == [("", "")] * 3
    assert parser.in_reasoning
    assert parser.push("thinking") == ("thinking", "")
    assert parser.push("<|eom|>") == ("", "")
    assert not parser.in_reasoning
