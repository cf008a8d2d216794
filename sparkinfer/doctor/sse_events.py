"""The events of a text/event-stream, as a client that follows the standard reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. name: "" where no `event:` line stood; data: decoded JSON, or the text where it is none."""

    name: str
    data: Any


def parse_events(text: str) -> list[SseEvent]:
    """All events of a finished stream; comments are left out."""
    events = []
    for chunk in text.split("\n\n"):
        name = ""
        data = []
        for line in chunk.split("\n"):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.strip()
            elif field == "data":
                data.append(value.removeprefix(" "))
        if data:
            events.append(SseEvent(name, _decoded("\n".join(data))))
    return events


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
