"""Numbers between bounds, as regular expressions over their decimal digits. Knows arithmetic; never schemas.

Every number that matches keeps the bounds as an IEEE double too: what carries a fraction has 15 digits at most.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

ANY_NUMBER = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?"
ANY_INTEGER = r"-?(?:0|[1-9][0-9]{0,17})"
MAX_INTEGER_DIGITS = 18               # where nothing bounds them: within 64 bits
_MAX_FRACTION_INTEGER_DIGITS = 9      # of a number with a fraction, where nothing bounds it
_MAX_DIGITS = 15                      # which a double keeps apart


def integer_range(low: int | None, high: int | None) -> str | None:
    """Decimal integers from low to high, both inclusive; None when there are none.

    >>> integer_range(3, 25), integer_range(-1, 1), integer_range(5, 4)
    ('[3-9]|1[0-9]|2[0-5]', '-1|0|1', None)
    """
    if low is not None and high is not None and low > high:
        return None
    limit = 10**MAX_INTEGER_DIGITS - 1
    low = min(-limit, -limit if high is None else 10 * min(high, 0)) if low is None else low
    high = max(limit, 10 * max(low, 0)) if high is None else high
    parts = []
    if low < 0:
        parts += ["-" + part for part in _positive(max(1, -high), -low)]
    if low <= 0 <= high:
        parts.append("0")
    if high > 0:
        parts += _positive(max(1, low), high)
    return "|".join(parts)


def _positive(low: int, high: int) -> list[str]:
    """Integers from low to high, 1 <= low <= high, by number of digits."""
    parts = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first, last = max(low, 10 ** (length - 1)), min(high, 10**length - 1)
        parts += _same_length(str(first), str(last))
    return parts


def _same_length(low: str, high: str) -> list[str]:
    """Digit strings from low to high, which are as long as each other.

    >>> _same_length("17", "42")
    ['1[7-9]', '[2-3][0-9]', '4[0-2]']
    """
    if low == high:
        return [low]
    if len(low) == 1:
        return [_digit(int(low), int(high))]
    if low[0] == high[0]:
        return [low[0] + part for part in _same_length(low[1:], high[1:])]
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * rest:
        parts += [low[0] + part for part in _same_length(low[1:], "9" * rest)]
        first += 1
    tail = []
    if high[1:] != "9" * rest:
        tail = [high[0] + part for part in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        parts.append(_digit(first, last) + (f"[0-9]{{{rest}}}" if rest > 1 else "[0-9]"))
    return parts + tail


def _digit(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"


def number_range(
    low: Decimal | None, high: Decimal | None, is_low_open: bool = False, is_high_open: bool = False
) -> str | None:
    """Decimal numbers without exponent between the bounds, which belong to them unless open; None: there are none."""
    if low is not None and high is not None and (low > high or (low == high and (is_low_open or is_high_open))):
        return None
    parts = []
    if low is None or low < 0:
        upper = None if low is None else -low
        lower = Decimal(0) if high is None or high >= 0 else -high
        is_lower_open = is_high_open if high is not None and high <= 0 else False
        parts += ["-" + part for part in _not_negative(lower, upper, is_lower_open, is_low_open)]
    if high is None or high > 0 or (high == 0 and not is_high_open):
        lower = Decimal(0) if low is None or low < 0 else low
        is_lower_open = is_low_open if low is not None and low >= 0 else False
        parts += _not_negative(lower, high, is_lower_open, is_high_open)
    return "|".join(parts) or None


def _not_negative(low: Decimal, high: Decimal | None, is_low_open: bool, is_high_open: bool) -> list[str]:
    """Numbers from low >= 0 on; high None: as far as digits go."""
    if high is not None and (low > high or (low == high and (is_low_open or is_high_open))):
        return []
    first, last = int(low.to_integral_value(ROUND_FLOOR)), None
    if high is not None:
        last = int(high.to_integral_value(ROUND_FLOOR))
    digits = _MAX_DIGITS - len(str(last if last is not None else max(first, 10**_MAX_FRACTION_INTEGER_DIGITS - 1)))
    if high is not None and last == 0:
        shown = _digits_of(high)
        digits += len(shown) - len(shown.lstrip("0"))  # zeros in front of all others take nothing of a double's
    fraction = _Fraction(digits)
    if high is not None and first == last:
        return [f"{first}{part}" for part in fraction.between(low - first, high - first, is_low_open, is_high_open)]
    parts = [f"{first}{part}" for part in fraction.at_least(low - first, is_low_open)]
    start = int(low.to_integral_value(ROUND_CEILING)) if low != first else first + 1
    if last is None:
        whole = integer_range(start, None)
        most = 10**_MAX_FRACTION_INTEGER_DIGITS - 1
        parts += [f"(?:{whole})"]
        if start <= most and digits > 0:
            parts.append(f"(?:{integer_range(start, most)})\\.[0-9]{{1,{digits}}}")
        return parts
    assert high is not None
    whole = integer_range(start, last - 1)
    if whole is not None:
        parts.append(f"(?:{whole}){fraction.any}")
    parts += [f"{last}{part}" for part in fraction.at_most(high - last, is_high_open)]
    return parts


class _Fraction:
    """What may follow the digits before a decimal point: nothing, or the point and 1 to `digits` digits."""

    def __init__(self, digits: int) -> None:
        self._digits = max(digits, 0)
        self.any = rf"(?:\.[0-9]{{1,{self._digits}}})?" if self._digits else ""

    def at_least(self, bound: Decimal, is_open: bool) -> list[str]:
        if bound == 0 and not is_open:
            return [self.any]
        return self._compared(bound, is_open, is_above=True)

    def at_most(self, bound: Decimal, is_open: bool) -> list[str]:
        return self._compared(bound, is_open, is_above=False)

    def between(self, low: Decimal, high: Decimal, is_low_open: bool, is_high_open: bool) -> list[str]:
        """0 <= low <= high < 1; a digit more than the bounds have, and up to six."""
        if low == 0 and not is_low_open:
            return self.at_most(high, is_high_open)
        parts = []
        for width in range(1, min(self._digits, max(6, 1 + len(_digits_of(low)), 1 + len(_digits_of(high)))) + 1):
            first = (low.scaleb(width)).to_integral_value(ROUND_CEILING)
            last = (high.scaleb(width)).to_integral_value(ROUND_FLOOR)
            first += is_low_open and first == low.scaleb(width)
            last -= is_high_open and last == high.scaleb(width)
            if first <= last:
                parts += ["\\." + part for part in _same_length(str(first).zfill(width), str(last).zfill(width))]
        return parts

    def _compared(self, bound: Decimal, is_open: bool, is_above: bool) -> list[str]:
        digits = _digits_of(bound)[: self._digits + 1]
        parts = []
        if not is_above and not (is_open and bound == 0):
            parts.append("")  # no fraction at all
        for i, char in enumerate(digits[: self._digits]):
            more = self._digits - i - 1
            first, last = (int(char) + 1, 9) if is_above else (0, int(char) - 1)
            if first <= last:
                parts.append(f"\\.{digits[:i]}{_digit(first, last)}[0-9]{{0,{more}}}")
            if not is_above and i > 0:
                parts.append(f"\\.{digits[:i]}")  # shorter, hence smaller
        if len(digits) <= self._digits and not is_open:
            zeros = self._digits - len(digits)
            tail = "[0-9]" if is_above else "0"
            if digits or zeros:
                parts.append(f"\\.{digits}{tail}{{{0 if digits else 1},{zeros}}}")
        zeros = self._digits - len(digits)
        if is_above and is_open and zeros > 0:
            parts.append(f"\\.{digits}[0-9]{{0,{zeros - 1}}}[1-9]")
        return parts


def _digits_of(fraction: Decimal) -> str:
    """The digits after the point of 0 <= fraction < 1, without zeros at the end.

    >>> _digits_of(Decimal("0.050")), _digits_of(Decimal(0))
    ('05', '')
    """
    return format(fraction, "f").partition(".")[2].rstrip("0")
