"""Arguments that a protocol writes without quotes, turned into JSON text as they arrive. Knows no markup but its end.

A reader takes raw text and gives the JSON text that became certain; `close` gives the rest once the end was found.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from sparkinfer.text.markers import partial_length
from sparkinfer.text.tool_protocols.call_writer import ToolOutputError
from sparkinfer.text.tool_protocols.json_scanner import JsonScanner

Accepts = Callable[[str], bool]

_LITERALS = ("null", "true", "false")
_JSON_STARTS = '"{[-0123456789'
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


class _Reader:
    """Finds the end marker. framing: one newline at each end of the value belongs to the markup."""

    def __init__(self, end: str, *, has_framing: bool) -> None:
        self.has_ended = False
        self.rest = ""
        self._end = end
        self._tail = f"\n{end}" if has_framing else end
        self._lead = "\n" if has_framing else ""
        self._has_lead = has_framing     # the newline at the head has not been seen yet

    def _raw(self, text: str) -> str:
        """The characters of the value that `text` makes certain."""
        self.rest += text
        if self._has_lead and self.rest:
            self.rest = self.rest.removeprefix(self._lead)
            self._has_lead = False
        at = self.rest.find(self._end)
        if at >= 0:
            raw, self.rest, self.has_ended = self.rest[:at], self.rest[at + len(self._end):], True
            return raw.removesuffix(self._lead) if self._lead else raw
        held = max(partial_length(self.rest, self._tail), partial_length(self.rest, self._end))
        cut = len(self.rest) - held
        raw, self.rest = self.rest[:cut], self.rest[cut:]
        return raw


class TextReader(_Reader):
    """A string, as growing JSON."""

    def __init__(self, end: str, *, has_framing: bool) -> None:
        super().__init__(end, has_framing=has_framing)
        self._is_open = False

    def push(self, text: str) -> str:
        raw = self._raw(text)
        opening = "" if self._is_open else '"'
        self._is_open = True
        return opening + json_inside(raw) + ('"' if self.has_ended else "")


class MixedReader(_Reader):
    """JSON if the whole value is JSON that `accepts` takes, else a string: shown once it can be no JSON any more."""

    def __init__(self, end: str, accepts: Accepts, *, has_framing: bool) -> None:
        super().__init__(end, has_framing=has_framing)
        self._accepts = accepts
        self._raw_text = ""
        self._is_string = False

    def push(self, text: str) -> str:
        raw = self._raw(text)
        if self._is_string:
            return json_inside(raw) + ('"' if self.has_ended else "")
        self._raw_text += raw
        if self.has_ended:
            is_json = self._accepts(self._raw_text)
            return self._raw_text.strip(_WHITESPACE) if is_json else f'"{json_inside(self._raw_text)}"'
        if _may_be_json(self._raw_text):
            return ""
        self._is_string = True
        return f'"{json_inside(self._raw_text)}'


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


def _may_be_json(text: str) -> bool:
    """Whether what begins with `text` can still be JSON."""
    head = text.lstrip(_WHITESPACE)
    if not head or head[0] in _JSON_STARTS:
        return True
    word = head.rstrip(_WHITESPACE)
    return any(literal == word or literal.startswith(head) for literal in _LITERALS)
