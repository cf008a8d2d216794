"""Sets of characters as ranges of code points, and how a regular expression writes one. Knows notation; never patterns.

Two notations: raw text, and text inside a JSON string, where each character is written in one way only (so that a
regular expression over the notation tells apart what JSON calls different).
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]  # inclusive, ascending, disjoint

LAST = 0x10FFFF
EVERY: Ranges = ((0, 0xD7FF), (0xE000, LAST))  # surrogates are no characters

_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\\\"}
_LONG_ESCAPED = tuple(code for code in range(0x20) if code not in _SHORT_ESCAPES)
_ALL_ESCAPES = r'\\(?:["\\bfnrt]|u00(?:0[0-7be-f]|1[0-9a-f]))'


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """
    >>> union([(5, 9), (1, 3), (4, 4), (20, 30), (8, 12)])
    ((1, 12), (20, 30))
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """
    >>> intersection(((1, 5), (10, 20)), ((4, 12),))
    ((4, 5), (10, 12))
    """
    pairs = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple(sorted((low, high) for low, high in pairs if low <= high))


def complement(ranges: Ranges) -> Ranges:
    """Every other character."""
    gaps, start = [], 0
    for low, high in (*ranges, (LAST + 1, LAST + 1)):
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    return intersection(tuple(gaps), EVERY)


def raw(ranges: Ranges) -> str:
    """One character of the set, as it is.

    >>> raw(((0x61, 0x63), (0x2F, 0x2F)))
    '[a-c\\\\x{2f}]'
    """
    return f"[{''.join(_range(low, high) for low, high in ranges)}]" if ranges else "[a&&b]"


def in_json(ranges: Ranges) -> str:
    """One character of the set, as a JSON string has it.

    >>> in_json(((0x09, 0x0A), (0x61, 0x63)))
    '(?:[a-c]|\\\\\\\\[nt])'
    """
    plain = intersection(ranges, complement(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))))
    codes = [code for code in (*_SHORT_ESCAPES, *_LONG_ESCAPED) if any(low <= code <= high for low, high in ranges)]
    if not codes:
        return raw(plain)
    parts = [raw(plain)] if plain else []
    if len(codes) == len(_SHORT_ESCAPES) + len(_LONG_ESCAPED):
        parts.append(_ALL_ESCAPES)
    else:
        short = "".join(sorted(_SHORT_ESCAPES[code] for code in codes if code in _SHORT_ESCAPES))
        parts += [rf"\\[{short}]"] if short else []
        parts += [rf"\\u{code:04x}" for code in codes if code not in _SHORT_ESCAPES]
    return f"(?:{'|'.join(parts)})"


def _range(low: int, high: int) -> str:
    return _char(low) if low == high else f"{_char(low)}-{_char(high)}"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
