"""Whether a text is JSON of a kind. Knows no API."""

from __future__ import annotations

import json


def is_object(text: str) -> bool:
    """Whether it holds one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
