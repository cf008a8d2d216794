"""Follows one JSON value as its text arrives in pieces, to find its end. Knows RFC 8259; builds no values."""

from __future__ import annotations

import re
from enum import Enum, auto

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS = "+-.0123456789eE"
MAX_DEPTH = 512


class _State(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()    # a value or ]
    FIRST_KEY = auto()     # a key or }
    KEY = auto()
    COLON = auto()
    NEXT = auto()          # , or the end of the container
    STRING = auto()
    ESCAPE = auto()
    UNICODE = auto()
    LITERAL = auto()
    NUMBER = auto()
    DONE = auto()


class JsonScanner:
    """One value, whitespace before it included. Raises ValueError at the first character that cannot be JSON."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._stack: list[str] = []  # the closing brackets that are due
        self._is_key = False         # of the string at hand
        self._rest = ""              # of the literal at hand
        self._digits = 0             # of the \u escape at hand
        self._number = ""

    @property
    def is_done(self) -> bool:
        """The value is complete. A number outside of arrays and objects is not before something follows it."""
        return self._state is _State.DONE

    @property
    def is_in_number(self) -> bool:
        """Nothing but a number has come yet, which the end of the text may complete."""
        return self._state is _State.NUMBER and not self._stack

    def feed(self, text: str, start: int = 0) -> int:
        """Follow text[start:]; returns how far the value goes in it, len(text) if it goes on."""
        at = start
        while at < len(text) and self._state is not _State.DONE:
            at = self._string(text, at) if self._state is _State.STRING else self._step(text[at], at)
        return at

    def finish(self) -> None:
        """No more text comes. Raises ValueError if the value is not complete."""
        if self.is_in_number:
            self._end_number()
        if self._state is not _State.DONE:
            raise ValueError("the value is not complete")

    def _string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None, "the pattern matches nothing at least"
        at = match.end()
        if at == len(text):
            return at
        if text[at] == '"':
            self._state = _State.COLON if self._is_key else self._after_value()
        elif text[at] == "\\":
            self._state = _State.ESCAPE
        else:
            raise ValueError(f"the control character {text[at]!r} in a string")
        return at + 1

    def _step(self, char: str, at: int) -> int:
        """One character outside of plain text; returns where to go on: a number's end is looked at twice."""
        state = self._state
        if state is _State.NUMBER:
            if char in _NUMBER_CHARACTERS:
                self._number += char
                return at + 1
            self._end_number()
            return at
        if state is _State.ESCAPE or state is _State.UNICODE or state is _State.LITERAL:
            self._inside(char)
        elif char not in _SPACE:
            self._between(char)
        return at + 1

    def _inside(self, char: str) -> None:
        if self._state is _State.ESCAPE:
            _expect(char in _ESCAPES or char == "u", char)
            self._digits = 4
            self._state = _State.UNICODE if char == "u" else _State.STRING
        elif self._state is _State.UNICODE:
            _expect(char in _HEX, char)
            self._digits -= 1
            self._state = _State.UNICODE if self._digits else _State.STRING
        else:
            _expect(self._rest.startswith(char), char)
            self._rest = self._rest[1:]
            self._state = _State.LITERAL if self._rest else self._after_value()

    def _between(self, char: str) -> None:
        state = self._state
        if char == '"' and state is not _State.COLON and state is not _State.NEXT:
            self._is_key = state in (_State.KEY, _State.FIRST_KEY)
            self._state = _State.STRING
        elif state in (_State.VALUE, _State.FIRST_ITEM) and not (state is _State.FIRST_ITEM and char == "]"):
            self._begin_value(char)
        elif state is _State.COLON:
            _expect(char == ":", char)
            self._state = _State.VALUE
        elif state is _State.NEXT and char == ",":
            self._state = _State.KEY if self._stack[-1] == "}" else _State.VALUE
        else:
            _expect(state is not _State.KEY and char == self._stack[-1], char)
            self._stack.pop()
            self._state = self._after_value()

    def _begin_value(self, char: str) -> None:
        if char in "{[":
            if len(self._stack) >= MAX_DEPTH:
                raise ValueError("the value is nested too deeply")
            self._stack.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_ITEM
        elif char in _LITERALS:
            self._rest = _LITERALS[char][1:]
            self._state = _State.LITERAL
        else:
            _expect(char == "-" or char in "0123456789", char)
            self._number = char
            self._state = _State.NUMBER

    def _end_number(self) -> None:
        if _NUMBER.fullmatch(self._number) is None:
            raise ValueError(f"{self._number[:32]!r} is no number")
        self._state = self._after_value()

    def _after_value(self) -> _State:
        return _State.NEXT if self._stack else _State.DONE


def _expect(is_right: bool, char: str) -> None:
    if not is_right:
        raise ValueError(f"{char!r} is not expected there")
