"""What every API's answer has in common: accumulated choices, and the interface that the HTTP worker drives.

A surface implements Reply; the worker decides when its methods are called and where the bytes go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from sparkinfer.api.blocks import BlockSequence
from sparkinfer.api.blocks import ReplyDelta as ReplyDelta
from sparkinfer.api.logprobs import TokenLogprob
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}


class WholeCall:
    """A tool call of an answer that is sent whole."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.arguments: list[str] = []

    @property
    def is_complete(self) -> bool:
        """The arguments are JSON, and not the beginning of it."""
        try:
            msgspec.json.decode("".join(self.arguments))
        except msgspec.DecodeError:
            return False
        return True


class Choice:
    """One choice of an answer that is sent whole. `text` is reasoning and content in the order of their arrival."""

    __slots__ = (
        "blocks", "content", "echo", "finish_reason", "index", "logprobs", "reasoning", "stop_string", "text",
        "tool_calls",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.echo = ""
        self.blocks = BlockSequence()
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.text: list[str] = []
        self.tool_calls: list[WholeCall] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None

    def add(self, delta: ReplyDelta) -> None:
        """Take the next delta in."""
        self.blocks.take(delta)
        if delta.reasoning:
            self.reasoning.append(delta.reasoning)
            self.text.append(delta.reasoning)
        if delta.content:
            self.content.append(delta.content)
            self.text.append(delta.content)
        for call in delta.tool_calls:
            if call.index == len(self.tool_calls):
                self.tool_calls.append(WholeCall(call.id, call.name))
            self.tool_calls[call.index].arguments.append(call.arguments)
        if delta.logprobs:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(delta.logprobs)

    def close(self, finish_reason: FinishReason, stop_string: str | None) -> None:
        """The choice has ended. A call that a limit cut short is none: nobody could carry it out."""
        self.finish_reason = finish_reason
        self.stop_string = stop_string
        if finish_reason == FinishReason.LENGTH and self.tool_calls and not self.tool_calls[-1].is_complete:
            self.tool_calls.pop()
            self.blocks.drop_last()


class Reply(Protocol):
    """Writes one answer, in one API's words, either as a stream or whole."""

    @property
    def stream_headers(self) -> list[tuple[str, str]]:
        """Of a streamed answer, its content type among them."""

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        """The chunks that open choice `index`."""

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        """The chunks for new text and calls; empty when there is nothing to say."""

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        """The chunks that close choice `index`. stop_string: the one that ended it, if one did."""

    def keep_alive(self) -> bytes:
        """What shows a client in a long silence that the stream lives, before `start` too; may be empty."""

    def end(self, usage: Usage | None) -> bytes:
        """The last chunks of a stream that went well, with or without usage."""

    def failure(self, error: RequestError) -> bytes:
        """The last chunks of a stream that failed, which it may do before `start`."""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The whole answer."""


@runtime_checkable
class KeptReply(Reply, Protocol):
    """A Reply whose last bytes say whether the answer was kept."""

    async def keep(self, choices: Sequence[Choice] | None, usage: Usage) -> None:
        """Keep the answer, before `document` is called, or `end` where choices is None."""
