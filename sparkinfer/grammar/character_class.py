r"""Which characters one item of a pattern stands for: a character, ".", or a class.

ECMA 262, whose patterns JSON Schema means, and Python, whose patterns most validators have, do not agree about \d,
\w, \s and ".": `sure` is what both admit, `possible` what either does. Never knows what stands around the item.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from re import _constants  # type: ignore[attr-defined]  # private, and the only parser of them
from typing import Any

from sparkinfer.grammar import char_set
from sparkinfer.grammar.char_set import Ranges

Meaning = Callable[[Any, Any], Ranges]  # of a parsed item's kind and value: sure or possible

_SCANNED = 0x20000  # what follows is ideographs, and nothing with a name of its own
_GAP = 16  # shorter gaps between Python's letters are not told apart, which keeps \W a tenth as long
_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BLANKS: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


def _unicode(pattern: str) -> Ranges:
    """The characters of Python's class as runs, as far as they are scanned."""
    text = "".join(map(chr, range(_SCANNED)))
    return tuple((match.start(), match.end() - 1) for match in re.finditer(f"{pattern}+", text))


def _coarse(ranges: Ranges) -> Ranges:
    gaps = [(high + 1, low - 1) for (_, high), (low, _) in itertools.pairwise(ranges)]
    return char_set.union([*ranges, *(gap for gap in gaps if gap[0] >= 0x300 and gap[1] - gap[0] < _GAP)])


def _categories(digits: Ranges, word: Ranges, space: Ranges) -> dict[Any, Ranges]:
    return {
        _constants.CATEGORY_DIGIT: digits,
        _constants.CATEGORY_NOT_DIGIT: char_set.complement(digits),
        _constants.CATEGORY_WORD: word,
        _constants.CATEGORY_NOT_WORD: char_set.complement(word),
        _constants.CATEGORY_SPACE: space,
        _constants.CATEGORY_NOT_SPACE: char_set.complement(space),
    }


_ECMA_SPACE = char_set.union([*_BLANKS, (0xFEFF, 0xFEFF)])
_PYTHON_SPACE = char_set.union([*_BLANKS, (0x1C, 0x1F), (0x85, 0x85)])
_PYTHON_WORD = char_set.intersection(
    char_set.union([*_coarse(_unicode(r"\w")), (_SCANNED, char_set.LAST)]),
    char_set.complement(char_set.union([*_ECMA_SPACE, *_PYTHON_SPACE])),
)
_ECMA = _categories(_DIGITS, _WORD, _ECMA_SPACE)
_PYTHON = _categories(_unicode(r"\d"), _PYTHON_WORD, _PYTHON_SPACE)


def sure(kind: Any, value: Any) -> Ranges:
    r"""What both take it for; text that a grammar writes has to be of these.

    >>> from re import _parser
    >>> [sure(*_parser.parse(pattern)[0]) for pattern in (r"[\d]", r"[^\s\S]")]
    [((48, 57),), ()]
    """
    return char_set.intersection(_ranges(kind, value, _ECMA, _LINE_ENDS), _ranges(kind, value, _PYTHON, _LINE_ENDS[:1]))


def possible(kind: Any, value: Any) -> Ranges:
    """What one of them takes it for; text that must not match has none of these."""
    ecma, python = _ranges(kind, value, _ECMA, _LINE_ENDS), _ranges(kind, value, _PYTHON, _LINE_ENDS[:1])
    return char_set.union([*ecma, *python])


def _ranges(kind: Any, value: Any, categories: dict[Any, Ranges], line_ends: Ranges) -> Ranges:
    if kind is _constants.LITERAL:
        return ((value, value),)
    if kind is _constants.NOT_LITERAL:
        return char_set.complement(((value, value),))
    if kind is _constants.ANY:
        return char_set.complement(line_ends)
    return _class(value, categories)


def _class(items: Sequence[Any], categories: dict[Any, Ranges]) -> Ranges:
    is_negated = bool(items) and items[0][0] is _constants.NEGATE
    ranges: list[tuple[int, int]] = []
    for kind, value in items[is_negated:]:
        if kind is _constants.LITERAL:
            ranges.append((value, value))
        elif kind is _constants.RANGE:
            ranges.append(value)
        elif kind is _constants.CATEGORY:
            ranges += categories[value]
    merged = char_set.union(ranges)
    return char_set.complement(merged) if is_negated else merged
