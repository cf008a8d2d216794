"""The three kinds of error and their fates.

ConfigError and CheckpointError are the operator's: one line, a non-zero exit, no respawn. RequestError is the
client's: it becomes an error body in the API's own shape. Everything else is ours: the process dies with a traceback.
"""

from __future__ import annotations


class ConfigError(Exception):
    """A setting that cannot be used; the message names file, section, key, value and what is allowed."""


class CheckpointError(Exception):
    """A model file that cannot be used; the message names the file and the offending part."""


class RequestError(Exception):
    """A request that cannot be served.

    status:   HTTP status code
    message:  one sentence for the person who reads it
    param:    path of the offending field ("messages[2].content"), or None
    code:     machine-readable reason ("context_length_exceeded"), or None
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
