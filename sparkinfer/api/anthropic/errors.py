"""Errors as Anthropic's clients read them. Knows nothing of how an error reaches the client."""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.errors import RequestError

NO_THREADS = "thread_unsupported_request"  # by which an SDK knows that it has to send whole conversations

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def anthropic_error(error: RequestError, request_id: str | None = None) -> dict[str, Any]:
    """{"type": "error", "error": {"type", "message"}, "request_id"}; in a stream the id stands in a header alone."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    told: dict[str, Any] = {"type": _TYPES.get(error.status, fallback), "message": _message(error)}
    if error.code == NO_THREADS:
        told["details"] = {"error_code": NO_THREADS, "unsupported": [error.param]}
    return {"type": "error", "error": told, "request_id": request_id}


def anthropic_error_json(error: RequestError, request_id: str) -> bytes:
    """The body of an error response."""
    return msgspec.json.encode(anthropic_error(error, request_id))


def _message(error: RequestError) -> str:
    """A prompt that is too long is told in the words by which agents know that they have to compact it."""
    if error.code == "context_length_exceeded" and error.details:
        return f"prompt is too long: {error.details['n_prompt_tokens']} tokens > {error.details['n_ctx']} maximum"
    return error.message
