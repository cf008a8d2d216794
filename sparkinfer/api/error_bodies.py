"""Which shape an error has on which route, and which headers: each API's clients look for their own.

Knows the first letters of paths; never a handler.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkinfer.api.anthropic.errors import anthropic_error_json
from sparkinfer.api.errors import error_json
from sparkinfer.api.lmstudio.errors import lmstudio_error_json
from sparkinfer.api.ollama.errors import ollama_error_json
from sparkinfer.errors import RequestError

_BY_PREFIX: tuple[tuple[tuple[str, ...], Callable[[RequestError], bytes]], ...] = (
    (("/api/v0", "/api/v1"), lmstudio_error_json),
    (("/api",), ollama_error_json),
)


def surface_headers(path: str, request_id: str) -> list[tuple[str, str]]:
    """Headers of every response below `path`, good or bad, that one API alone has."""
    return [("request-id", request_id)] if _is_below(path, "/v1/messages") else []


def error_body(path: str, error: RequestError, request_id: str, is_anthropic: bool = False) -> bytes:
    """The body of an error response to a request for `path`, whether or not there is such a route.

    is_anthropic: the client says that it is one of theirs, which tells on routes of OpenAI that they share
    """
    if _is_below(path, "/v1/messages") or (is_anthropic and _is_below(path, "/v1/models")):
        return anthropic_error_json(error, request_id)
    for prefixes, write in _BY_PREFIX:
        if any(_is_below(path, prefix) for prefix in prefixes):
            return write(error)
    return error_json(error)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
