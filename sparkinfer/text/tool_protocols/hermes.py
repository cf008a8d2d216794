"""Reads tool calls that are written as JSON between two tags, as their text streams. Knows tags; never tokens.

    reply  = content { "<tool_call>" call "</tool_call>" }
    call   = {"name": NAME, "arguments": {...}}

Whitespace between tags means nothing. The JSON ends by itself, whatever its strings spell. Arguments that come before
the name wait for it.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from sparkinfer.text.tool_protocols.call_parser import CallParser
from sparkinfer.text.tool_protocols.call_writer import ToolOffer, ToolOutputError
from sparkinfer.text.tool_protocols.json_scanner import JsonScanner

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_KEYS = ("name", "arguments")
_WHITESPACE = " \t\r\n"


class _State(Enum):
    OPENED = auto()      # { must follow
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    NEXT = auto()        # , or }
    CLOSING = auto()


_PUNCTUATION = {_State.OPENED: "{", _State.COLON: ":", _State.NEXT: ",}"}


class HermesParser(CallParser):
    """One choice's reply behind its reasoning."""

    def __init__(self, offer: ToolOffer, *, calls_come_first: bool = False) -> None:
        super().__init__(OPEN, offer, calls_come_first=calls_come_first)
        self._state = _State.OPENED
        self._scanner = JsonScanner()
        self._text = ""                  # of the key or value at hand
        self._key = ""
        self._name: str | None = None
        self._seen: set[str] = set()
        self._waiting = ""               # arguments that came before the name

    def _open(self) -> None:
        self._state = _State.OPENED
        self._name, self._waiting = None, ""
        self._seen = set()

    def _advance_call(self) -> bool:
        if self._state in _PUNCTUATION:
            return self._read_punctuation(_PUNCTUATION[self._state])
        if self._state is _State.CLOSING:
            return self._next_tag((CLOSE,)) is not None and self._close()
        return self._read_json()

    def _read_punctuation(self, expected: str) -> bool:
        self._held = self._held.lstrip(_WHITESPACE)
        if not self._held:
            return False
        char, self._held = self._held[0], self._held[1:]
        if char not in expected:
            raise ToolOutputError(f"the model's call is not JSON: {char!r} is not expected there")
        if char == "}":
            self._end_call()
            self._state = _State.CLOSING
            return True
        self._scanner, self._text = JsonScanner(), ""
        self._state = _State.VALUE if char == ":" else _State.KEY
        return True

    def _read_json(self) -> bool:
        """Follow a key or a value; the arguments go on as they come."""
        try:
            at = self._scanner.feed(self._held)
        except ValueError as error:
            raise ToolOutputError(f"the model's call is not JSON: {error}") from error
        piece, self._held = self._held[:at], self._held[at:]
        if not self._text:
            piece = piece.lstrip(_WHITESPACE)
        self._text += piece
        if self._state is _State.VALUE and self._key == "arguments":
            self._take_arguments(piece)
        if not self._scanner.is_done:
            return False
        if self._state is _State.KEY:
            self._end_key()
            self._state = _State.COLON
        else:
            if self._key == "name":
                self._end_name()
            self._state = _State.NEXT
        return True

    def _end_key(self) -> None:
        key = json.loads(self._text) if self._text.startswith('"') else None
        if key not in _KEYS or key in self._seen:
            raise ToolOutputError(f"the model's call has {self._text[:32]} where name or arguments belongs")
        self._key = key
        self._seen.add(key)

    def _take_arguments(self, piece: str) -> None:
        if not self._text:
            return
        if self._text[0] != "{":
            raise ToolOutputError("the arguments of the model's call are no JSON object")
        if self._name is None:
            self._waiting += piece
        else:
            self._calls.add(piece)

    def _end_name(self) -> None:
        name = json.loads(self._text)
        if not isinstance(name, str):
            raise ToolOutputError("the name in the model's call is no string")
        self._name = name
        self._calls.begin(name)
        self._calls.add(self._waiting)

    def _end_call(self) -> None:
        if self._name is None:
            raise ToolOutputError("the model's call has no name")
        if "arguments" not in self._seen:
            self._calls.add("{}")
        self._calls.end()
