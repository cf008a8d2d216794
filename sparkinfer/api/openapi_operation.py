"""One route as the OpenAPI document describes it."""

from __future__ import annotations

from typing import NamedTuple

GENERATION_ERRORS = (400, 401, 408, 413, 415, 429, 500, 502, 503, 504)
PROMPT_ERRORS = (400, 401, 408, 413, 415, 500, 503)


class Operation(NamedTuple):
    """One route. request, reply, event and error are names of schemas."""

    method: str
    path: str
    summary: str
    reply: str = ""          # "": plain text
    request: str = ""
    event: str = ""          # of the stream that is sent instead when the body says "stream": true
    needs_key: bool = False
    errors: tuple[int, ...] = ()
    error: str = "Error"
    stream_type: str = "text/event-stream"
