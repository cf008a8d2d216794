"""Errors as Ollama's clients read them: one text under one key."""

from __future__ import annotations

import msgspec

from sparkinfer.errors import RequestError


def ollama_error_json(error: RequestError) -> bytes:
    """The body of an error response, and the last line of a stream that failed."""
    return msgspec.json.encode({"error": error.message})
