"""The rate at which all clients' answers come in together."""

from __future__ import annotations

import math

import pytest

from ops.bench.serve import decode_rate
from ops.bench.stream_client import Answer


def answer(first: float, last: float, events: int, tokens: int) -> Answer:
    step = (last - first) / (events - 1)
    return Answer(token_times=[first + step * i for i in range(events)], output_tokens=tokens)


def test_only_the_time_in_which_everybody_decodes_counts() -> None:
    early, late = answer(0.0, 8.0, 9, 18), answer(4.0, 12.0, 9, 9)
    assert decode_rate([(early, late)]) == pytest.approx((4 * 2 + 4 * 1) / 4)


def test_rounds_add_up() -> None:
    alone = answer(0.0, 2.0, 3, 3)
    assert decode_rate([(alone,), (answer(10.0, 11.0, 3, 3),)]) == pytest.approx(4 / 3)


def test_no_such_time() -> None:
    assert math.isnan(decode_rate([(answer(0.0, 1.0, 2, 2), answer(2.0, 3.0, 2, 2))]))
