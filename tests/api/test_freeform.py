"""The text of a freeform call is read from JSON that grows, wherever it is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.api.responses.freeform import FreeformInput, freeform_text


@settings(max_examples=300)
@given(st.text(), st.booleans(), st.lists(st.integers(0, 60), max_size=6))
def test_pieces_make_the_whole(text: str, ascii_only: bool, cuts: list[int]) -> None:
    raw = json.dumps({"input": text}, ensure_ascii=ascii_only)
    reader = FreeformInput()
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [reader.push(raw[start:end]) for start, end in itertools.pairwise(places)]
    assert "".join(pieces) == text == freeform_text(raw)


def test_it_grows_with_its_json() -> None:
    reader = FreeformInput()
    pieces = ['{"inp', 'ut": "', "ab", "\\", "n", "c\\ud83d", "\\ude00", '"}', "more"]
    assert [reader.push(piece) for piece in pieces] == ["", "", "ab", "", "\n", "c", "\U0001f600", "", ""]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "ab', "ab"), ('{"input": "ab\\', "ab"), ("", ""), ("[]", ""), ('{"input": 3}', ""),
     ('{"other": "x"}', ""), ('{"input": "\\ud83d"}', "\ufffd")],
)  # fmt: skip
def test_what_is_cut_or_odd(arguments: str, text: str) -> None:
    assert freeform_text(arguments) == text
