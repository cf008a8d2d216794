"""Finds stop strings in text that arrives in pieces. Knows text only."""

from __future__ import annotations

from collections.abc import Iterable


class StopStringFilter:
    """Passes text on up to the first stop string; the stop string and all that follows is swallowed.

    The match that is complete first counts (of those that end together, the longest), so the outcome is the same
    however the text is cut, and generation can stop at once. Text is held back only while it is the beginning of a
    stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Empty stop strings are ignored: the API layer refuses them."""
        self.matched: str | None = None
        self._stops = [stop for stop in stops if stop]
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._held = ""

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, text: str) -> str:
        """Text that is safe to show; "" once a stop string has been seen."""
        if self.matched is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text
        buffer = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := buffer.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return buffer[:start]
        cut = min((_partial_start(buffer, stop) for stop in self._stops), default=len(buffer))
        self._held = buffer[cut:]
        return buffer[:cut]

    def flush(self) -> str:
        """The held-back text, at the end of the stream."""
        held, self._held = self._held, ""
        return held


def _partial_start(text: str, stop: str) -> int:
    """Where the longest end of `text` starts that is a beginning of `stop`; len(text) if there is none.

    >>> _partial_start("say <en", "<end>")
    4
    """
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
