"""What every API's answer has in common: accumulated choices, and the interface that the HTTP worker drives.

A surface implements Reply; the worker decides when its methods are called and where the bytes go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparkinfer.api.logprobs import TokenLogprob
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Choice:
    """One choice of an answer that is sent whole. `text` is reasoning and content in the order of their arrival."""

    __slots__ = ("content", "echo", "finish_reason", "index", "logprobs", "reasoning", "text")

    def __init__(self, index: int) -> None:
        self.index = index
        self.echo = ""
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.finish_reason: FinishReason | None = None

    def add(self, content: str, reasoning: str, logprobs: Sequence[TokenLogprob] | None) -> None:
        if reasoning:
            self.reasoning.append(reasoning)
            self.text.append(reasoning)
        if content:
            self.content.append(content)
            self.text.append(content)
        if logprobs:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(logprobs)


class Reply(Protocol):
    """Writes one answer, in one API's words, either as a stream or whole."""

    def start(self, index: int, echo: str) -> bytes:
        """The chunks that open choice `index`."""

    def delta(self, index: int, content: str, reasoning: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        """The chunks for new text; empty when there is nothing to say."""

    def finish(self, index: int, finish_reason: FinishReason) -> bytes:
        """The one chunk that closes choice `index`."""

    def end(self, usage: Usage | None) -> bytes:
        """The last chunks of a stream that went well, with or without usage."""

    def failure(self, error: RequestError) -> bytes:
        """The last chunks of a stream that failed."""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The whole answer."""
