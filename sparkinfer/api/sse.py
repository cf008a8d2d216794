"""Server-sent events: framing, and a pre-rendered envelope so that a token costs one escape and one join.

Knows no API: the envelope is cut out of whatever object it is given.
"""

from __future__ import annotations

from typing import Any

import msgspec

encode_json = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
]

_HOLE = "\x00hole\x00"  # cannot be part of an id or of a model's name, which carry no control characters


def event(obj: Any, name: str = "") -> bytes:
    """One `data:` event holding `obj` as JSON; with a name it has an `event:` line too."""
    data = b"data: " + encode_json(obj) + b"\n\n"
    return b"event: " + name.encode() + b"\n" + data if name else data


class Envelope:
    """An event whose object never changes but for one string, which may stand at several places.

    >>> Envelope({"index": 0, "text": Envelope.hole()}).render("a\\n")
    b'data: {"index":0,"text":"a\\\\n"}\\n\\n'
    """

    __slots__ = ("_pieces",)

    def __init__(self, template: Any, name: str = "") -> None:
        self._pieces = event(template, name).split(encode_json(_HOLE))

    @staticmethod
    def hole() -> str:
        """The value that `render` replaces."""
        return _HOLE

    def render(self, text: str) -> bytes:
        """The event with `text` in every hole."""
        return encode_json(text).join(self._pieces)
