"""What one HTTP request asks the text pool for, whatever API it came through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sparkinfer.api.models import ModelInfo
from sparkinfer.api.reply import Reply
from sparkinfer.api.schema import Object, read_bool, read_object
from sparkinfer.request import Request, RequestId

NewRequestId = Callable[[], RequestId]
MakeReply = Callable[[str, int], Reply]  # from a hexadecimal id, unique, and the Unix time


@dataclass(frozen=True, slots=True)
class Generation:
    """One Request per prompt; choice i of prompt p is choice p * n + i of the answer."""

    requests: tuple[Request, ...]
    stream: bool
    include_usage: bool  # a stream ends with a usage chunk whatever the server's own setting
    exclude_reasoning: bool = False
    skipped_tools: tuple[str, ...] = ()  # kinds of tools that no client of ours can run; a header tells
    tool_paths: tuple[str, ...] = ()  # where in the body the schema of each tool is; (): where OpenAI's chat has it

    def of_client(self, client_id: int, explain_cache: bool = False) -> Generation:
        """The same, known to come from this client, who may want to hear how much the prefix cache spared."""
        requests = tuple(
            msgspec.structs.replace(request, client_id=client_id, explain_cache=explain_cache)
            for request in self.requests
        )
        return dataclasses.replace(self, requests=requests)

    @property
    def num_choices(self) -> int:
        return sum(request.n for request in self.requests)


# What a surface makes of a body: the generation, and how its answer is written. RequestError for what is wrong.
Plan = Callable[[Object, ModelInfo, NewRequestId], tuple[Generation, MakeReply]]


def read_stream(body: Object) -> tuple[bool, bool]:
    """(stream, stream_options.include_usage); the options are checked and ignored when stream is false."""
    options = read_object(body, "stream_options") or {}
    return read_bool(body, "stream", False), read_bool(options, "include_usage", False, "stream_options")
