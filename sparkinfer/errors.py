"""The three kinds of error and their fates.

ConfigError and CheckpointError are the operator's: one line, a non-zero exit, no respawn. RequestError is the
client's: it becomes an error body in the API's own shape. Everything else is ours: the process dies with a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping


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
    details:  numbers that a program may want, by name
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        details: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.details = dict(details or {})


def context_length_error(
    max_model_len: int, num_prompt_tokens: int, param: str, num_completion_tokens: int | None = None,
    is_least: bool = False,
) -> RequestError:
    """The 400 for what does not fit; agents look for this very sentence and code to shorten their conversation.

    num_completion_tokens: None where any number will do, and none fits
    is_least: the prompt, too long by its characters already, was not counted
    """
    more = " The prompt has that many tokens or more." if is_least else ""
    room = "at least 1" if num_completion_tokens is None else str(num_completion_tokens)
    requested = num_prompt_tokens + (1 if num_completion_tokens is None else num_completion_tokens)
    return RequestError(
        400,
        f"This model's maximum context length is {max_model_len} tokens. However, you requested {requested} tokens "
        f"({num_prompt_tokens} in the prompt, {room} in the completion). Please reduce the length of the prompt.{more}",
        param=param,
        code="context_length_exceeded",
        details={"n_prompt_tokens": num_prompt_tokens, "n_ctx": max_model_len},
    )
