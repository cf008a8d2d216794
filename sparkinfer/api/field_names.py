"""Errors that name fields as the client spells them: what lies below the APIs speaks of OpenAI's chat. Knows no API."""

from __future__ import annotations

import re

from sparkinfer.errors import RequestError


class FieldNames:
    """Our names of an API's fields to its own.

    >>> FieldNames((r"top_k", "options.top_k")).in_error(RequestError(400, "top_k: is odd", param="top_k")).message
    'options.top_k: is odd'
    """

    def __init__(self, *pairs: tuple[str, str]) -> None:
        """pairs: (pattern of the beginning of a path up to a whole name, what stands there instead); first come."""
        self.pairs = pairs
        self._patterns = [(re.compile(rf"(?:{pattern})(?![\w-])"), name) for pattern, name in pairs]

    def in_error(self, error: RequestError) -> RequestError:
        """The error, about the client's own field."""
        if error.param is None:
            return error
        for pattern, name in self._patterns:
            param = pattern.sub(name, error.param, count=1) if pattern.match(error.param) else error.param
            if param != error.param:
                message = error.message
                if message.startswith(f"{error.param}:"):
                    message = param + message.removeprefix(error.param)
                return RequestError(error.status, message, param=param, code=error.code, details=error.details)
        return error


SAME_NAMES = FieldNames()
