"""Arguments that a protocol writes without quotes, turned into JSON text as they arrive. Knows no markup but its end.

A reader takes raw text and gives the JSON text that became certain, until it has found the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from sparkinfer.text.markers import partial_length
from sparkinfer.text.tool_protocols.call_writer import ToolOutputError
from sparkinfer.text.tool_protocols.json_scanner import JsonScanner

Accepts = Callable[[str], bool]

_WHITESPACE = " \t\r\n"


class ValueReader(Protocol):
    """One value."""

    @property
    def has_ended(self) -> bool:
        """Whether the end marker was found; what follows it is left in `rest`."""

    @property
    def rest(self) -> str:
        """Raw text that was not used: held back, or behind the end."""

    def push(self, text: str) -> str:
        """JSON text that became certain. Raises ToolOutputError."""


class TextReader:
    """A string, as growing JSON, up to the first end marker."""

    def __init__(self, end: str, *, has_framing: bool) -> None:
        """has_framing: one newline at each end of the value belongs to the markup."""
        self.has_ended = False
        self.rest = ""
        self._end = end
        self._tail = f"\n{end}" if has_framing else end
        self._newline = "\n" if has_framing else ""
        self._is_at_head = True
        self._is_open = False

    def push(self, text: str) -> str:
        raw = self._raw(text)
        opening = "" if self._is_open else '"'
        self._is_open = True
        return opening + json_inside(raw) + ('"' if self.has_ended else "")

    def _raw(self, text: str) -> str:
        """The characters of the value that `text` makes certain."""
        self.rest += text
        if self._is_at_head and self.rest:
            self.rest = self.rest.removeprefix(self._newline)
            self._is_at_head = False
        at = self.rest.find(self._end)
        if at >= 0:
            raw, self.rest, self.has_ended = self.rest[:at], self.rest[at + len(self._end):], True
            return raw.removesuffix(self._newline) if self._newline else raw
        held = max(partial_length(self.rest, self._tail), partial_length(self.rest, self._end))
        cut = len(self.rest) - held
        raw, self.rest = self.rest[:cut], self.rest[cut:]
        return raw


class MixedReader:
    """JSON if the whole value is JSON that `accepts` takes, else a string: shown once it can be no JSON any more."""

    def __init__(self, end: str, accepts: Accepts, *, has_framing: bool) -> None:
        self._accepts = accepts
        self._json: JsonReader | None = JsonReader(end)
        self._text = TextReader(end, has_framing=has_framing)
        self._seen = ""                  # raw text while it may be JSON
        self._value = ""                 # the JSON of it so far

    @property
    def has_ended(self) -> bool:
        return self._text.has_ended if self._json is None else self._json.has_ended

    @property
    def rest(self) -> str:
        if self._json is None:
            return self._text.rest
        return self._json.rest if self._json.has_ended else self._seen

    def push(self, text: str) -> str:
        if self._json is None:
            return self._text.push(text)
        self._seen += text
        try:
            self._value += self._json.push(text)
        except ToolOutputError:
            return self._give_up()
        if not self._json.has_ended:
            return ""
        if not self._accepts(self._value):
            return self._give_up()
        self._seen = ""
        return self._value

    def _give_up(self) -> str:
        self._json = None
        return self._text.push(self._seen)


class JsonReader:
    """JSON, whose own end is what ends it: a string in it may spell the end marker."""

    def __init__(self, end: str) -> None:
        self.has_ended = False
        self.rest = ""
        self._end = end
        self._scanner = JsonScanner()
        self._has_begun = False

    def push(self, text: str) -> str:
        text = self.rest + text
        self.rest = ""
        if not self._has_begun:
            text = text.lstrip(_WHITESPACE)
            self._has_begun = bool(text)
        try:
            at = self._scanner.feed(text)
        except ValueError as error:
            raise ToolOutputError(f"an argument is not JSON: {error}") from error
        value, self.rest = text[:at], text[at:]
        if self._scanner.is_done:
            self._find_end()
        return value

    def _find_end(self) -> None:
        rest = self.rest.lstrip(_WHITESPACE)
        if rest.startswith(self._end):
            self.rest, self.has_ended = rest[len(self._end):], True
        elif not self._end.startswith(rest):
            raise ToolOutputError(f"there is text behind an argument: {rest[:32]!r}")


def json_inside(text: str) -> str:
    """`text` as the inside of a JSON string.

    >>> json_inside('a "b"')
    'a \\\\"b\\\\"'
    """
    return json.dumps(text, ensure_ascii=False)[1:-1]
