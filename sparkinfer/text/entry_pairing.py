"""Pairs the logprobs of tokens with the text those tokens became. Knows lengths of text; never what finds its parts.

Positions count characters of a choice's raw text. The entry of a token belongs to the delta that carries the token's
last character, so that a stream tells for each piece of text just the tokens behind it. Text that is held back (half
a character, half a marker, the beginning of a stop string) holds back the entries of its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sparkinfer.request import ToolCallDelta


class TokenEntry(NamedTuple):
    """Logprob of one token, None for a prompt's first; `top` holds (token_id, logprob), best first."""

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]]


class Segment:
    """Text of one kind, or parts of calls, with the entries of its tokens."""

    __slots__ = ("entries", "is_reasoning", "text", "tool_calls")

    def __init__(self, is_reasoning: bool) -> None:
        self.is_reasoning = is_reasoning
        self.text = ""
        self.tool_calls: list[ToolCallDelta] = []
        self.entries: list[TokenEntry] = []


class _Waiting:
    """A token whose entry is not given out yet; end is -1 while its last character is incomplete."""

    __slots__ = ("end", "entry", "in_reasoning")

    def __init__(self, entry: TokenEntry, end: int, in_reasoning: bool) -> None:
        self.entry = entry
        self.end = end
        self.in_reasoning = in_reasoning


class EntryPairing:
    """Per token: `token`, then `text` for what became certain with it, then `settle`."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._waiting: deque[_Waiting] = deque()
        self._position = 0

    def token(self, entry: TokenEntry, text: str, *, is_whole: bool, in_reasoning: bool) -> None:
        """One token and the raw text it completed. is_whole: it left no bytes of an unfinished character behind."""
        self._position += len(text)
        if text or is_whole:
            for waiting in reversed(self._waiting):
                if waiting.end >= 0:
                    break
                waiting.end = self._position
        self._waiting.append(_Waiting(entry, self._position if is_whole else -1, in_reasoning))

    def tail(self, text: str) -> None:
        """Raw text that came without a token, at the end: what was left of an unfinished character."""
        self._position += len(text)

    def text(self, content: str, reasoning: str) -> None:
        """Text that may be shown. Reasoning goes first."""
        for is_reasoning, piece in ((True, reasoning), (False, content)):
            if not piece:
                continue
            last = self.segments[-1] if self.segments else None
            if last is None or last.is_reasoning != is_reasoning or last.tool_calls:
                self.segments.append(Segment(is_reasoning))
            self.segments[-1].text += piece

    def calls(self, tool_calls: Sequence[ToolCallDelta]) -> None:
        """Parts of calls that may be shown, behind all text so far."""
        if not tool_calls:
            return
        if not self.segments or not self.segments[-1].tool_calls:
            self.segments.append(Segment(is_reasoning=False))
        self.segments[-1].tool_calls += tool_calls

    def settle(self, num_held: int) -> None:
        """Give out the entries of tokens none of whose characters is among the last num_held, which are held back.

        A token that became no text (a marker) waits for the next one that did.
        """
        certain = self._position - num_held
        textless: list[TokenEntry] = []
        num_settled = 0
        for number, waiting in enumerate(self._waiting, 1):
            if not 0 <= waiting.end <= certain:
                break
            textless.append(waiting.entry)
            segment = self._match(waiting.in_reasoning)
            if segment is not None:
                segment.entries += textless
                textless = []
                num_settled = number
        for _ in range(num_settled):
            self._waiting.popleft()

    def drop_last(self) -> None:
        """The newest token loses its entry: its text completed a stop string."""
        if self._waiting:
            self._waiting.pop()

    def take(self) -> list[Segment]:
        """The segments since the last call."""
        segments, self.segments = self.segments, []
        return segments

    def finish(self) -> list[Segment]:
        """The last segments; entries whose tokens have no text of their own go on a last one without text."""
        if self._waiting:
            last = Segment(is_reasoning=False)
            last.entries += [waiting.entry for waiting in self._waiting]
            self._waiting.clear()
            self.segments.append(last)
        return self.take()

    def _match(self, is_reasoning: bool) -> Segment | None:
        """The newest segment of a kind that has no newer one with entries: entries keep their order."""
        for segment in reversed(self.segments):
            if segment.is_reasoning == is_reasoning:
                return segment
            if segment.entries:
                return None
        return None
