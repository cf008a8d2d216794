"""The text of a freeform call, read from the growing JSON of its one argument. Knows no event."""

from __future__ import annotations

import json
import re

from sparkinfer.api.responses.tools import CUSTOM_INPUT

_HEAD = re.compile(rf'\s*+\{{\s*+"{CUSTOM_INPUT}"\s*+:\s*+"')
# Whole characters and whole escapes. The first half of a surrogate pair waits for its other one.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u(?![dD][89abAB])[0-9a-fA-F]{4}))*+'
)


class FreeformInput:
    """Grows with its JSON."""

    def __init__(self) -> None:
        self._raw = ""  # not yet understood
        self._is_open = False  # in the text
        self._is_over = False

    def push(self, piece: str) -> str:
        """What the next characters of the JSON add to the text."""
        if self._is_over:
            return ""
        self._raw += piece
        if not self._is_open:
            head = _HEAD.match(self._raw)
            if head is None:
                return ""
            self._is_open = True
            self._raw = self._raw[head.end():]
        whole = _WHOLE.match(self._raw)
        assert whole is not None
        self._raw = self._raw[whole.end():]
        self._is_over = self._raw.startswith('"')
        text: str = json.loads(f'"{whole[0]}"', strict=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def freeform_text(arguments: str) -> str:
    """The text in `arguments`, however much of them there is."""
    try:
        value = json.loads(arguments).get(CUSTOM_INPUT)
    except (ValueError, AttributeError):
        return FreeformInput().push(arguments)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else ""
