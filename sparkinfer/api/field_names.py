"""Errors that name fields as the client spells them: what lies below the APIs speaks of OpenAI's chat. Knows no API."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkinfer.errors import RequestError

_TOOL = re.compile(r"tools\[(\d+)\]\.function\.parameters(?![\w-])")


class FieldNames:
    """Our names of an API's fields to its own.

    >>> FieldNames((r"top_k", "options.top_k")).in_error(RequestError(400, "top_k: is odd", param="top_k")).message
    'options.top_k: is odd'
    """

    def __init__(self, *pairs: tuple[str, str]) -> None:
        """pairs: (pattern of the beginning of a path up to a whole name, what stands there instead); first come."""
        self.pairs = pairs
        self._patterns = [(re.compile(rf"(?:{pattern})(?![\w-])"), name) for pattern, name in pairs]

    def in_error(self, error: RequestError, tool_paths: Sequence[str] = ()) -> RequestError:
        """The error, about the client's own field. tool_paths: where the schemas of the offered tools came from."""
        if error.param is None:
            return error
        tool = _TOOL.match(error.param)
        if tool is not None and int(tool[1]) < len(tool_paths):
            return _renamed(error, tool_paths[int(tool[1])] + error.param[tool.end():])
        for pattern, name in self._patterns:
            if pattern.match(error.param):
                return _renamed(error, pattern.sub(name, error.param, count=1))
        return error


def _renamed(error: RequestError, param: str) -> RequestError:
    message = error.message
    if error.param is not None and message.startswith(f"{error.param}:"):
        message = param + message.removeprefix(error.param)
    return RequestError(error.status, message, param=param, code=error.code, details=error.details)


SAME_NAMES = FieldNames()
