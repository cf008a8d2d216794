"""Splits a Muse Glimmer reply, a chain of addressed segments, into reasoning and content. Knows text; never tokens.

    reply    = segment { "<|start|>assistant" segment }
    segment  = [ " to=" recipient ] "<|message|>" body [ "<|eom|>" ]

The prompt already wrote the first `<|start|>assistant`. What is addressed to `self` is reasoning, everything else is
content. The three markers are control tokens: the Detokenizer must be told to keep them visible.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from sparkinfer.text.markers import partial_length

START, MESSAGE, END = "<|start|>", "<|message|>", "<|eom|>"
SEGMENT_MARKERS = (START, MESSAGE, END)

_ROLE, _TO = "assistant", "to="
_RECIPIENT = re.compile(r"[^\s<]*")
_MAX_HEADER_LENGTH = 200  # characters; a longer one is no header


class _State(Enum):
    HEADER = auto()   # before <|message|>
    BODY = auto()
    BETWEEN = auto()  # after <|eom|>, before <|start|>


class SegmentParser:
    """One choice's reply; the same contract as OutputParser. Text that is no header is content."""

    def __init__(self) -> None:
        self.in_reasoning = False
        self._state = _State.HEADER
        self._held = ""

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that became certain with `text`."""
        self._held += text
        reasoning, content = "", ""
        while True:
            state, held = self._state, self._held
            body = self._advance()
            if self.in_reasoning:
                reasoning += body
            else:
                content += body
            if (state, held) == (self._state, self._held):
                return reasoning, content

    def flush(self) -> tuple[str, str]:
        """What was held back, at the end of the stream: the beginning of a marker; an unfinished header is dropped."""
        held, self._held = self._held, ""
        if self._state != _State.BODY:
            return "", ""
        return (held, "") if self.in_reasoning else ("", held)

    def _advance(self) -> str:
        """One step of the grammar; returns the body text that it passed."""
        if self._state == _State.HEADER:
            self._read_header()
            return ""
        if self._state == _State.BETWEEN:
            at = self._held.find(START)
            self._held = self._held[at + len(START):] if at >= 0 else self._held[-len(START):]
            self._state = _State.HEADER if at >= 0 else _State.BETWEEN
            return ""
        return self._read_body()

    def _read_header(self) -> None:
        end = _header_end(self._held)
        if end == 0 or max(end, len(self._held) if end < 0 else 0) > _MAX_HEADER_LENGTH:
            self.in_reasoning, self._state = False, _State.BODY
        elif end > 0:
            self.in_reasoning = "to=self" in self._held[: end - len(MESSAGE)].split()
            self._held, self._state = self._held[end:], _State.BODY

    def _read_body(self) -> str:
        ends = [(at, marker) for marker in (END, START) if (at := self._held.find(marker)) >= 0]
        if not ends:
            cut = len(self._held) - max(partial_length(self._held, marker) for marker in (END, START))
            body, self._held = self._held[:cut], self._held[cut:]
            return body
        at, marker = min(ends)
        body, self._held = self._held[:at], self._held[at:]
        if not body:  # the marker is taken in a step of its own, so that the body keeps its kind
            self._held = self._held[len(marker):]
            self._state = _State.BETWEEN if marker == END else _State.HEADER
            self.in_reasoning = False
        return body


def _header_end(text: str) -> int:
    """Length of the header that `text` begins with: 0 if it begins with none, -1 if more text must tell.

    >>> _header_end(" to=self<|message|>hm"), _header_end(" to=se"), _header_end("to be")
    (19, -1, 0)
    """
    rest = text.lstrip()
    for word, tail in ((_ROLE, None), (_TO, _RECIPIENT)):
        if word.startswith(rest):
            return -1
        if rest.startswith(word):
            rest = rest[len(word):]
            if tail is not None:
                rest = tail.sub("", rest, count=1)
            rest = rest.lstrip()
    if rest.startswith(MESSAGE):
        return len(text) - len(rest) + len(MESSAGE)
    return -1 if MESSAGE.startswith(rest) else 0
