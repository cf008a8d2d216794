"""OpenAI-shaped error bodies: one table from HTTP status to error type and default code.

Knows nothing of how an error reaches the client.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.errors import RequestError

# status -> (type, code when the error names none)
_KINDS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "permission_denied"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "timeout"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    501: ("server_error", "not_implemented"),
    502: ("server_error", "invalid_output"),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "timeout"),
}

RETRY_AFTER_S = {429: 1, 503: 1}  # statuses that a client may simply repeat, and after how many seconds


def error_object(error: RequestError) -> dict[str, Any]:
    """{"error": {"message", "type", "param", "code"}}, all four keys always present, and the error's details."""
    fallback = 400 if error.status < 500 else 500
    kind, code = _KINDS.get(error.status, (_KINDS[fallback][0], None))
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code if error.code is not None else code,
            **error.details,
        }
    }


def error_json(error: RequestError) -> bytes:
    """The body of an error response."""
    return msgspec.json.encode(error_object(error))
