"""Errors as LM Studio's clients read them: its own words for kinds of errors."""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.errors import RequestError

_TYPES = {501: "not_implemented"}


def lmstudio_error(error: RequestError) -> dict[str, Any]:
    """{"type", "message", "code", "param"}, all four always present."""
    if error.code == "model_not_found":
        kind = "model_not_found"
    else:
        kind = _TYPES.get(error.status, "invalid_request" if error.status < 500 else "internal_error")
    return {"type": kind, "message": error.message, "code": error.code, "param": error.param}


def lmstudio_error_json(error: RequestError) -> bytes:
    """The body of an error response."""
    return msgspec.json.encode({"error": lmstudio_error(error)})
