"""Markers in text that arrives in pieces: what must be held back because a marker may be growing there."""

from __future__ import annotations

from collections.abc import Iterable


def partial_length(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`, and not all of it.

    >>> partial_length("say <en", "<end>")
    3
    """
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)


def match_start(text: str, markers: Iterable[str]) -> str | None:
    """Which of `markers` `text` begins with; "" for none, None when more text must tell.

    >>> match_start("<b>c", ["<a>", "<b>"]), match_start("<", ["<a>"]), match_start("c", ["<a>"])
    ('<b>', None, '')
    """
    is_open = False
    for marker in markers:
        if text.startswith(marker):
            return marker
        is_open = is_open or marker.startswith(text)
    return None if is_open else ""
