"""Stop strings against a whole-string oracle, under any cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.stop_strings import StopStringFilter


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    stop_filter = StopStringFilter(stops)
    text = "".join([stop_filter.push(piece) for piece in pieces])
    return text + stop_filter.flush(), stop_filter.matched


def oracle(stops: list[str], text: str) -> tuple[str, str | None]:
    """The match that ends first; of those that end together the longest."""
    for end in range(1, len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            longest = max(endings, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, points: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(point % (len(text) + 1) for point in points)})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


SMALL = st.text(alphabet="ab\x00é", max_size=14)


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.text(alphabet="ab\x00é", min_size=1, max_size=5), max_size=4), SMALL, st.lists(st.integers(0, 99)))
def test_equals_the_oracle_however_cut(stops: list[str], text: str, points: list[int]) -> None:
    assert feed(stops, cut(text, points)) == oracle(stops, text)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4), st.text("ab", max_size=14))
def test_holds_back_only_what_a_stop_string_could_need(stops: list[str], text: str) -> None:
    stop_filter = StopStringFilter(stops)
    shown = "".join(map(stop_filter.push, text))
    if stop_filter.matched is None:
        held = text[len(shown):]
        assert held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(("stops", "pieces", "text", "matched"), [
    (["END"], ["one END two"], "one ", "END"),
    (["END"], ["one E", "N", "D two"], "one ", "END"),
    (["END"], ["one E", "N", "o"], "one ENo", None),
    (["two", "one"], ["zero one two"], "zero ", "one"),
    (["abc", "ab"], ["xabc"], "x", "ab"),
    (["never"], ["all of ", "it"], "all of it", None),
    ([], ["all"], "all", None),
    ([""], ["all"], "all", None),
    (["a\0b"], ["xa", "\0", "by"], "x", "a\0b"),
    (["aab"], ["aaa", "b"], "a", "aab"),
    (["longer than all"], ["longer"], "longer", None),
])
def test_cases(stops: list[str], pieces: list[str], text: str, matched: str | None) -> None:
    assert feed(stops, pieces) == (text, matched)


def test_text_after_the_match_is_swallowed() -> None:
    stop_filter = StopStringFilter(["."])
    assert [stop_filter.push(piece) for piece in ("a", ".b", "c")] == ["a", "", ""]
    assert stop_filter.flush() == ""


def test_harmless_text_passes_at_once() -> None:
    stop_filter = StopStringFilter(["\n\n###END###"])
    assert stop_filter.push("hello\n") == "hello"
    assert stop_filter.push("world") == "\nworld"
