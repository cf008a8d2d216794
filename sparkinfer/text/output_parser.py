"""Splits a reply into reasoning and content at <think> markers, as it streams. Knows text; never tokens.

Grammar of a reply, s being whitespace and n a newline:

    reply      = [opening] reasoning [n] "</think>" [n] [n] content   | content
    opening    = s "<think>" { s "<think>" }

The opening is absent where the prompt already wrote it. Models repeat it now and then; the repetition is dropped. One
newline at each end of the reasoning and up to two before the content belong to the markers.
"""

from __future__ import annotations

from enum import Enum, auto

_OPEN = "<think>"
_CLOSE = "</think>"
_NEWLINES_AFTER_CLOSE = 2


class _State(Enum):
    OPENING = auto()    # an opening marker may still come
    REASONING = auto()
    CLOSING = auto()    # between the closing marker and the content
    CONTENT = auto()


class OutputParser:
    """One choice's reply. What is returned never changes by what comes later, and not by how the text is cut."""

    def __init__(self, starts_in_reasoning: bool) -> None:
        """starts_in_reasoning: the prompt ends with an open <think>."""
        self.in_reasoning = starts_in_reasoning
        self._state = _State.OPENING
        self._is_content = False
        self._held = ""
        self._newlines_left = _NEWLINES_AFTER_CLOSE

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that became certain with `text`."""
        if self._is_content:
            return "", text
        self._held += text
        reasoning = ""
        if self._state == _State.OPENING:
            self._open()
        if self._state == _State.REASONING:
            reasoning = self._reason()
        if self._state == _State.CLOSING:
            self._skip_newlines()
        self._is_content = self._state == _State.CONTENT
        return reasoning, self._take() if self._is_content else ""

    def flush(self) -> tuple[str, str]:
        """(reasoning, content) that was held back, at the end of the stream."""
        if self._state == _State.OPENING and self.in_reasoning:
            self._held = self._held.removeprefix("\n")
        held = self._take()
        return (held, "") if self.in_reasoning else ("", held)

    def _open(self) -> None:
        """Drop opening markers; leave the state once something else has come."""
        rest = self._held.lstrip()
        while rest.startswith(_OPEN):
            self.in_reasoning = True
            self._held = rest[len(_OPEN):]
            rest = self._held.lstrip()
        if not rest or _OPEN.startswith(rest):
            return
        if self.in_reasoning:
            self._held = self._held.removeprefix("\n")
        self._state = _State.REASONING if self.in_reasoning else _State.CONTENT

    def _reason(self) -> str:
        end = self._held.find(_CLOSE)
        if end >= 0:
            reasoning = self._held[:end].removesuffix("\n")
            self._held = self._held[end + len(_CLOSE):]
            self._state, self.in_reasoning = _State.CLOSING, False
            return reasoning
        cut = len(self._held) - _held_length(self._held)
        reasoning, self._held = self._held[:cut], self._held[cut:]
        return reasoning

    def _skip_newlines(self) -> None:
        while self._newlines_left and self._held.startswith("\n"):
            self._held = self._held[1:]
            self._newlines_left -= 1
        if self._held or not self._newlines_left:
            self._state = _State.CONTENT

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held


def _held_length(text: str) -> int:
    """Length of the end of `text` that may turn out to be (a newline and) the closing marker."""
    end = text[-len(_CLOSE):]  # one character less than a newline and the marker
    if "\n" not in end and "<" not in end:
        return 0
    closing = "\n" + _CLOSE
    matches = (n for n in range(len(end), 0, -1) if closing.startswith(end[-n:]) or _CLOSE.startswith(end[-n:]))
    return next(matches, 0)
