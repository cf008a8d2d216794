"""Ranges of numbers as regular expressions over digits, against arithmetic."""

from __future__ import annotations

import re
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.grammar.number_text import ANY_INTEGER, ANY_NUMBER, integer_range, number_range

BOUNDS = st.none() | st.decimals(-2000, 2000, places=2)
STEPS = st.decimals(-3, 3, places=3)


def matches(pattern: str | None, text: str) -> bool:
    return pattern is not None and re.fullmatch(f"(?:{pattern})", text) is not None


@settings(max_examples=300)
@given(st.none() | st.integers(-(10**6), 10**6), st.none() | st.integers(-(10**6), 10**6), st.integers(-20, 20))
def test_integers(low: int | None, high: int | None, step: int) -> None:
    pattern = integer_range(low, high)
    for value in {step, (low or 0) + step, (high or 0) + step}:
        expected = (low is None or value >= low) and (high is None or value <= high)
        assert matches(pattern, str(value)) == expected, (low, high, value)


@settings(max_examples=400)
@given(BOUNDS, BOUNDS, st.booleans(), st.booleans(), STEPS)
def test_numbers(low: Decimal | None, high: Decimal | None, low_open: bool, high_open: bool, step: Decimal) -> None:
    pattern = number_range(low, high, low_open, high_open)
    for value in {step, (low or 0) + step, (high or 0) + step, low or Decimal(0), high or Decimal(0)}:
        text = format(Decimal(value).normalize(), "f")
        number = float(text)
        above = low is None or number > float(low) or (number == float(low) and not low_open)
        below = high is None or number < float(high) or (number == float(high) and not high_open)
        assert matches(pattern, text) == (above and below) or number == 0, (low, high, low_open, high_open, text)


def test_far_bounds() -> None:
    assert matches(integer_range(-(2**63), 2**63 - 1), str(2**63 - 1))
    assert not matches(integer_range(-(2**63), 2**63 - 1), str(2**63))
    assert matches(number_range(Decimal("1e20"), None), str(10**20))
    for pattern in (ANY_NUMBER, ANY_INTEGER):
        assert not matches(pattern, "1e400")
        assert not matches(pattern, "9" * 30)
