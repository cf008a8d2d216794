"""Reasoning and content, independent of how the reply is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.output_parser import OutputParser


def feed(starts_in_reasoning: bool, pieces: list[str]) -> tuple[str, str]:
    parser = OutputParser(starts_in_reasoning)
    deltas = [*map(parser.push, pieces), parser.flush()]
    return "".join(reasoning for reasoning, _ in deltas), "".join(content for _, content in deltas)


CASES = [
    (True, "plan\n</think>\n\nanswer", "plan", "answer"),
    (True, "plan.. </think> answer", "plan.. ", " answer"),
    (True, "reason</think>answer", "reason", "answer"),
    (True, "<think>\nplan\n</think>\n\nanswer", "plan", "answer"),
    (True, " <think>plan</think>answer", "plan", "answer"),
    (True, "<think><think>\nplan</think>answer", "plan", "answer"),
    (True, "\n<think>\n<think>plan</think>answer", "plan", "answer"),
    (True, "never closed", "never closed", ""),
    (True, "cut at </thi", "cut at </thi", ""),
    (True, "cut\n", "cut\n", ""),
    (True, "</think>\n\nanswer", "", "answer"),
    (True, "\n</think>\n\nanswer", "", "answer"),
    (True, "\n\n</think>\n\n\nanswer", "", "\nanswer"),
    (True, "a\n\n</think>b", "a\n", "b"),
    (True, "Use <interface> here</think>x", "Use <interface> here", "x"),
    (True, "a </thin> b</think>c </think> d", "a </thin> b", "c </think> d"),
    (True, "", "", ""),
    (False, "plain answer", "", "plain answer"),
    (False, "  plain", "", "  plain"),
    (False, "\n<think>\nplan\n</think>\n\nanswer", "plan", "answer"),
    (False, "<think>plan", "plan", ""),
    (False, "answer <think>x</think>", "", "answer <think>x</think>"),
    (False, "<thin", "", "<thin"),
    (False, "<thinking>", "", "<thinking>"),
    (False, "<think>\n\n</think>\n\nanswer", "", "answer"),
    (False, "a</think>b", "", "a</think>b"),
]


@pytest.mark.parametrize(("starts", "text", "reasoning", "content"), CASES)
def test_cases(starts: bool, text: str, reasoning: str, content: str) -> None:
    assert feed(starts, [text]) == (reasoning, content)
    assert feed(starts, list(text)) == (reasoning, content)


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "</", "think>", "</thi", "<thi"]))


@settings(max_examples=2000, deadline=None)
@given(st.booleans(), PIECES)
def test_result_does_not_depend_on_the_cuts(starts: bool, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = feed(starts, [text])
    assert feed(starts, pieces) == whole
    assert feed(starts, list(text)) == whole


@settings(max_examples=500, deadline=None)
@given(st.booleans(), PIECES)
def test_nothing_but_markers_and_their_whitespace_is_lost(starts: bool, pieces: list[str]) -> None:
    text = "".join(pieces)
    reasoning, content = feed(starts, [text])
    assert text.endswith(content)
    assert text.count("a") == reasoning.count("a") + content.count("a")


def test_plain_text_is_not_held_back() -> None:
    parser = OutputParser(True)
    assert parser.push("thinking") == ("thinking", "")
    assert parser.in_reasoning
    assert parser.push(" of </th") == (" of ", "")
    assert parser.push("is") == ("</this", "")
    assert parser.push("</think>") == ("", "")
    assert not parser.in_reasoning
    assert parser.push("\n\nyes") == ("", "yes")
    assert parser.push("\n\nno") == ("", "\n\nno")
