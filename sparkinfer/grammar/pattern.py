"""A schema's regular expression as one of a grammar: anchored, and in the notation that the text will have.

Patterns are ECMA 262's, as far as Python's parser reads them; what the two do not agree about is left out of what a
pattern admits. Never knows a schema.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]  # private, and the only parser of them
from typing import Any, NamedTuple

from sparkinfer.grammar import char_set
from sparkinfer.grammar.char_set import Ranges
from sparkinfer.grammar.character_class import Meaning, possible, sure

Encode = Callable[[Ranges], str]  # char_set.raw or char_set.in_json

_STARTS = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
_ENDS = (_constants.AT_END, _constants.AT_END_STRING)
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_CHARACTERS = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)
MAX_REPEATS = 100_000


class PatternError(ValueError):
    """A pattern that is no regular expression, or uses what a grammar cannot hold."""


class PatternTooLargeError(PatternError):
    """A pattern that no notation makes smaller."""


class Term(NamedTuple):
    """Text that has to match as a whole, or not to."""

    regex: str
    is_negated: bool = False


def compiled(pattern: str) -> re.Pattern[str]:
    """For looking at values that are already there; `search` is the schema's meaning. Raises PatternError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": ECMA has no sets in sets
            return re.compile(_in_python(pattern), re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"is not a valid regular expression: {error}") from error


def _in_python(pattern: str) -> str:
    r"""In the notation of Python's parser, which has no surrogate pairs.

    >>> print(_in_python(r"(?<n>\uD83D\uDE00\\u)"))
    (?P<n>😀\\u)
    """
    return _NAMED_GROUP.sub("(?P<", _ESCAPE.sub(_character, pattern))


def _character(match: re.Match[str]) -> str:
    high, low = match.groups()
    return match[0] if not high else chr(0x10000 + (int(high, 16) - 0xD800 << 10) + int(low, 16) - 0xDC00)


class Run(NamedTuple):
    """A number of characters, each of the same set; most: None if there may be any number of them."""

    characters: Ranges
    least: int
    most: int | None


@functools.lru_cache(1024)
def run(pattern: str) -> Run | None:
    """What text must be from end to end if `pattern` says no more than that, as "^[a-z]{1,9}$" does. PatternError."""
    items = _parsed(pattern)
    if len(items) != 3 or items[0] not in [(_constants.AT, at) for at in _STARTS]:
        return None
    kind, value = items[1]
    if items[2] not in [(_constants.AT, at) for at in _ENDS] or kind not in _REPEATS or len(value[2]) != 1:
        return None
    low, high, ((kind, value),) = value
    if kind not in _CHARACTERS:
        return None
    return Run(sure(kind, value), low, None if high is _constants.MAXREPEAT else high)


def _parsed(pattern: str) -> list[Any]:
    compiled(pattern)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = _parser.parse(_in_python(pattern), re.ASCII)
    if parsed.state.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE):
        raise PatternError("flags inside a pattern are not supported")
    return list(parsed)


@functools.lru_cache(1024)
def full_match(pattern: str, encode: Encode, meaning: Meaning = sure) -> tuple[Term, ...]:
    """What text must match from end to end to hold a match of `pattern` somewhere: every term. Raises PatternError.

    meaning: `possible` for text that is not to hold one
    """
    writer = _Writer(encode, meaning)
    items, terms = writer.without_lookaheads(_parsed(pattern))
    try:
        return (Term(writer.sequence(items, is_left=True, is_right=True)), *terms)
    except RecursionError:
        raise PatternError("is nested too deeply") from None


class _Writer:
    """Writes a parsed pattern. is_left, is_right: nothing of the pattern stands on that side, so that anything may."""

    def __init__(self, encode: Encode, meaning: Meaning) -> None:
        self._encode = encode
        self._meaning = meaning
        self._times = 1  # that what is being written is repeated
        self._anything = f"(?:{encode(char_set.EVERY)})*"

    @property
    def _opposite(self) -> Meaning:
        return possible if self._meaning is sure else sure

    def without_lookaheads(self, items: list[Any]) -> tuple[list[Any], list[Term]]:
        """Look-aheads at the start of a pattern say something about the whole text: terms of their own."""
        if not items or items[0] not in [(_constants.AT, start) for start in _STARTS]:
            return items, []
        terms, rest = [], items[1:]
        while rest and rest[0][0] in (_constants.ASSERT, _constants.ASSERT_NOT) and rest[0][1][0] == 1:
            kind, (_, ahead) = rest.pop(0)
            is_negated = kind is _constants.ASSERT_NOT
            writer = _Writer(self._encode, self._opposite) if is_negated else self
            terms.append(Term(writer.sequence([items[0], *ahead], True, True), is_negated))
        return [items[0], *rest], terms

    def sequence(self, items: Sequence[Any], is_left: bool = False, is_right: bool = False) -> str:
        items = list(items)
        if len(items) == 1 and items[0][0] in (_constants.BRANCH, _constants.SUBPATTERN):
            return self._item(items[0], is_left, is_right)
        starts = is_left and bool(items) and items[0][0] is _constants.AT and items[0][1] in _STARTS
        if starts:
            del items[0]
        ends = is_right and bool(items) and items[-1][0] is _constants.AT and items[-1][1] in _ENDS
        if ends:
            del items[-1]
        inner_left = is_left and not starts and bool(items) and _has_anchor(items[0])
        inner_right = is_right and not ends and bool(items) and _has_anchor(items[-1])
        last = len(items) - 1
        parts = [self._item(item, inner_left and i == 0, inner_right and i == last) for i, item in enumerate(items)]
        before = self._anything if is_left and not starts and not inner_left else ""
        after = self._anything if is_right and not ends and not inner_right else ""
        return before + "".join(parts) + after

    def _repeated(self, inner: Any, times: int) -> str:
        """The inside of a repetition, which repetitions around it repeat as well."""
        outer, self._times = self._times, self._times * max(times, 1)
        if self._times > MAX_REPEATS:
            raise PatternTooLargeError(f"repeats more than {MAX_REPEATS} times, repetitions of repetitions multiplied")
        text = self.sequence(inner)
        self._times = outer
        return text

    def _item(self, item: Any, is_left: bool, is_right: bool) -> str:
        kind, value = item
        if kind is _constants.BRANCH:
            return f"(?:{'|'.join(self.sequence(branch, is_left, is_right) for branch in value[1])})"
        if kind is _constants.SUBPATTERN:
            _, added, removed, inner = value
            if added or removed:
                raise PatternError("flags inside a pattern are not supported")
            return f"(?:{self.sequence(inner, is_left, is_right)})"
        if kind in _REPEATS:
            low, high, inner = value
            bounds = f"{{{low},{'' if high is _constants.MAXREPEAT else high}}}"
            return f"(?:{self._repeated(inner, low if high is _constants.MAXREPEAT else high)}){bounds}"
        if kind not in _CHARACTERS:
            raise PatternError(_UNSUPPORTED.get(kind, "has a construct that is not supported"))
        return self._encode(self._meaning(kind, value))


def _has_anchor(item: Any) -> bool:
    """Whether an anchor stands in a group, which then takes care of its own side."""
    kind, value = item
    if kind is _constants.SUBPATTERN:
        return any(_is_anchor(inner) or _has_anchor(inner) for inner in value[3])
    if kind is _constants.BRANCH:
        return any(_is_anchor(inner) or _has_anchor(inner) for branch in value[1] for inner in branch)
    return False


def _is_anchor(item: Any) -> bool:
    return item[0] is _constants.AT


_UNSUPPORTED = {
    _constants.AT: "has an anchor or a word boundary in its middle, which is not supported",
    _constants.ASSERT: "has look-around, which is supported after ^ alone",
    _constants.ASSERT_NOT: "has look-around, which is supported after ^ alone",
    _constants.GROUPREF: "has a back-reference, which is not supported",
}
