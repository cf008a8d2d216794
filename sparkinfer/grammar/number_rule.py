"""The rule of a number under bounds and divisors. Knows arithmetic and notation; never keywords."""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

from sparkinfer.grammar.number_text import integer_range, number_range
from sparkinfer.grammar.output_grammar import literal, regex_escaped
from sparkinfer.grammar.schema_document import fail
from sparkinfer.grammar.shapes import NumberShape
from sparkinfer.grammar.trial import complaint

MAX_MULTIPLES = 1024            # that are written out one by one
MAX_COEFFICIENT = 100_000       # of the step of those that are not: an automaton has a state for each remainder
_MULTIPLE_BOUND = 10**15        # of those that are not: beyond, llguidance's arithmetic is not exact


def number_rule(shape: NumberShape) -> str | None:
    """The text of a terminal, or a "%json" that stands in rules alone; None when no number fits."""
    if shape.is_empty:
        return None
    if shape.multiples:
        return _multiples(shape)
    if shape.is_integer:
        low, high = _integer_bounds(shape)
        text = integer_range(low, high)
        if low is None and high is None and not shape.excluded:
            return "JSON_INTEGER"
    else:
        text = number_range(shape.low, shape.high, shape.is_low_open, shape.is_high_open)
        if shape.low is None and shape.high is None and not shape.excluded:
            return "JSON_NUMBER"
    if text is None:
        return None
    excluded = [f"~/-?{regex_escaped(_plain(value))}(\\.?0*)/" if "." not in _plain(value)
                else f"~/{regex_escaped(_plain(value))}0*/" for value in shape.excluded]
    return " & ".join([f"/{text}/", *excluded])


def _integer_bounds(shape: NumberShape) -> tuple[int | None, int | None]:
    """The first and the last integer between the bounds."""
    low = high = None
    if shape.low is not None:
        low = int(shape.low.to_integral_value(ROUND_CEILING))
        low += shape.is_low_open and low == shape.low
    if shape.high is not None:
        high = int(shape.high.to_integral_value(ROUND_FLOOR))
        high -= shape.is_high_open and high == shape.high
    return low, high


def _multiples(shape: NumberShape) -> str | None:
    step = Fraction(1) if shape.is_integer else Fraction(shape.multiples[0])
    for multiple in shape.multiples:
        step = _common_multiple(step, Fraction(multiple))
    first = None if shape.low is None else math.ceil(Fraction(shape.low) / step)
    last = None if shape.high is None else math.floor(Fraction(shape.high) / step)
    if first is not None and shape.is_low_open and first * step == Fraction(shape.low or 0):
        first += 1
    if last is not None and shape.is_high_open and last * step == Fraction(shape.high or 0):
        last -= 1
    if first is not None and last is not None:
        if first > last:
            return None
        if last - first < MAX_MULTIPLES:
            values = [_decimal(number * step) for number in range(first, last + 1)]
            excluded = {_plain(value) for value in shape.excluded}
            texts = [literal(text) for text in values if text not in excluded]
            return " | ".join(texts) if texts else None
    return _unbounded_multiples(shape, step, (first, last))


def _unbounded_multiples(shape: NumberShape, step: Fraction, limits: tuple[int | None, int | None]) -> str:
    """limits: the first and the last multiple, as numbers of steps."""
    if shape.excluded:
        fail(shape.path, "together with excluded numbers it takes bounds")
    if _coefficient(step) > MAX_COEFFICIENT:
        fail(shape.path, f"takes bounds that leave {MAX_MULTIPLES} multiples at most where it has the digits of more "
                         f"than {MAX_COEFFICIENT}, got {_decimal(step)}")
    bound = Fraction(_MULTIPLE_BOUND)
    low, high = (end if limit is None else limit * step for limit, end in zip(limits, (-bound, bound)))
    if abs(low) > bound or abs(high) > bound:
        fail(shape.path, f"takes bounds within ±{_MULTIPLE_BOUND:.0e}")
    rule = "%json " + json.dumps({"type": "integer" if step.denominator == 1 else "number",
                                  "multipleOf": _json_number(step),
                                  "minimum": _json_number(low), "maximum": _json_number(high)})
    problem = complaint(rule)
    if problem is not None:
        fail(shape.path, f"cannot be held: {problem}")
    return rule


def _coefficient(step: Fraction) -> int:
    """Its decimal digits, without zeros at their end.

    >>> _coefficient(Fraction(3, 200)), _coefficient(Fraction(1200))
    (15, 12)
    """
    return int(_decimal(step).replace(".", "").rstrip("0"))


def _common_multiple(left: Fraction, right: Fraction) -> Fraction:
    return Fraction(
        math.lcm(left.numerator, right.numerator), math.gcd(left.denominator, right.denominator)
    )


def _json_number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _decimal(value: Fraction) -> str:
    """Without exponent; every multiple of a decimal number is one.

    >>> _decimal(Fraction(7, 20)), _decimal(Fraction(-3))
    ('0.35', '-3')
    """
    return _plain(Decimal(value.numerator) / Decimal(value.denominator))


def _plain(value: int | float | Decimal) -> str:
    text = format(value if isinstance(value, Decimal) else Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
