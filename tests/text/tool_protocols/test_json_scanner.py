"""The scanner agrees with Python's parser about what JSON is, and finds the end of a value at every cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.tool_protocols.json_scanner import MAX_DEPTH, JsonScanner
from tests.text.tool_protocols.replies import cut

PIECES = st.lists(
    st.sampled_from(['"', "a", "\\", "u00e9", "\\n", "{", "}", "[", "]", ",", ":", "1", "-", ".", "e", "0", "true",
                     "null", " ", "\n", "fals", '"k"', '"k":']),
    max_size=14,
).map("".join)  # fmt: skip


def scans(text: str, lengths: list[int]) -> bool:
    """Whether all of `text`, but for blanks behind it, is one value."""
    scanner = JsonScanner()
    rest = ""
    try:
        for piece in cut(text, lengths):
            rest += piece[scanner.feed(piece):]
        scanner.finish()
    except ValueError:
        return False
    return not rest.strip(" \t\r\n")


def parses(text: str) -> bool:
    try:
        json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    except ValueError:
        return False
    return True


@settings(max_examples=1500, deadline=None)
@given(text=PIECES, lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_it_takes_what_json_is(text: str, lengths: list[int]) -> None:
    assert scans(text, lengths) == parses(text)


@pytest.mark.parametrize("value", ['{"a": "}"}', "[[], {}]", '"\\""', "true", "-1.5e+3", "0"])
def test_the_end_is_found(value: str) -> None:
    scanner = JsonScanner()
    assert scanner.feed(f" {value}<rest>") == 1 + len(value)
    assert scanner.is_done


def test_depth_is_limited() -> None:
    assert scans("[" * MAX_DEPTH + "]" * MAX_DEPTH, [1000])
    assert not scans("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), [1000])
