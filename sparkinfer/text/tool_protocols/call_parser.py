"""What the readers of all tool protocols share: content up to the first call. Knows one opening tag, no protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto

from sparkinfer.request import ToolCallDelta
from sparkinfer.text.markers import match_start, partial_length
from sparkinfer.text.tool_protocols.call_writer import CallWriter, ToolOffer, ToolOutputError

MIN_TAG = 6  # characters of a tag that nobody writes who does not mean it: "<tool_"


class _Part(Enum):
    CONTENT = auto()
    ANSWER = auto()      # content to the end, whatever it spells
    CALL = auto()
    BETWEEN = auto()     # another call, or the end of the reply


class CallParser(ABC):
    """One choice's reply behind its reasoning: content { call }, whitespace between calls meaning nothing.

    What is returned never changes by what comes later, and not by how the text is cut.
    """

    def __init__(self, opening: str, offer: ToolOffer, *, calls_come_first: bool) -> None:
        """opening: the tag that begins a call.

        calls_come_first: content that has begun is all content; a call is one only in the place of an answer
        """
        self._opening = opening
        self._calls_come_first = calls_come_first
        self._calls = CallWriter(offer)
        self._part = _Part.CONTENT
        self._content = ""
        self._held = ""

    @property
    def num_calls(self) -> int:
        """Complete calls so far."""
        return self._calls.num_calls

    @property
    def is_in_call(self) -> bool:
        """A call has begun and is not complete."""
        return self._part is _Part.CALL

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Content, and what belongs to calls behind it, that became certain. Raises ToolOutputError."""
        self._held += text
        while self._advance():
            pass
        content, self._content = self._content, ""
        return content, self._calls.take()

    def flush(self, *, is_complete: bool) -> str:
        """Content that was held back, at the end of the stream. A call that is not complete stays so.

        What looks like the beginning of a tag is no content. is_complete: the model itself ended the reply there; then
        it takes more to look like one.
        """
        held, self._held = self._held, ""
        if self._part is not _Part.CONTENT:
            return ""
        begun = partial_length(held, self._opening)
        return held[:-begun].rstrip() if begun >= (MIN_TAG if is_complete else 1) else held

    @abstractmethod
    def _open(self) -> None:
        """A call begins: its opening tag was read."""

    @abstractmethod
    def _advance_call(self) -> bool:
        """One step inside a call; whether another may follow. `_close` ends it."""

    def _advance(self) -> bool:
        if self._part is _Part.CALL:
            return self._advance_call()
        if self._part is _Part.CONTENT:
            return self._read_content()
        if self._part is _Part.ANSWER:
            self._content, self._held = self._content + self._held, ""
            return False
        if self._next_tag((self._opening,)) is None:
            return False
        return self._begin_call()

    def _read_content(self) -> bool:
        if self._calls_come_first and match_start(self._held.lstrip(), (self._opening,)) == "":
            self._part = _Part.ANSWER
            return True
        at = self._held.find(self._opening)
        if at >= 0:
            self._content += self._held[:at].rstrip()
            self._held = self._held[at + len(self._opening):]
            return self._begin_call()
        cut = len(self._held) - partial_length(self._held, self._opening)
        cut = len(self._held[:cut].rstrip())  # blanks before a call are no content
        self._content, self._held = self._content + self._held[:cut], self._held[cut:]
        return False

    def _begin_call(self) -> bool:
        self._part = _Part.CALL
        self._open()
        return True

    def _close(self) -> bool:
        """A call is complete, its closing tag read."""
        self._part = _Part.BETWEEN
        return True

    def _next_tag(self, choices: tuple[str, ...], *, keep: bool = False) -> str | None:
        """Which of the tags comes next behind whitespace; None when more text must tell. Anything else is an error.

        keep: the tag stays in the text
        """
        self._held = self._held.lstrip()
        tag = match_start(self._held, choices) if self._held else None
        if tag == "":
            where = "in" if self._part is _Part.CALL else "behind"
            raise ToolOutputError(f"there is text {where} the model's call where a tag belongs: {self._held[:32]!r}")
        if tag is not None and not keep:
            self._held = self._held[len(tag):]
        return tag
