"""The answer of POST /v1/completions: text_completion events or one text_completion object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.logprobs import CompletionLogprobs
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.openai_stream import OpenAIStream
from sparkinfer.api.reply import FINISH_REASONS, Choice, ReplyDelta
from sparkinfer.api.usage import Usage
from sparkinfer.request import FinishReason


class CompletionReply(OpenAIStream):
    """One answer. A completion has no place for reasoning of its own, so it is part of the text."""

    def __init__(self, reply_id: str, created: int, info: ModelInfo) -> None:
        """reply_id: hexadecimal, unique; created: Unix time."""
        super().__init__(f"cmpl-{reply_id}", "text_completion", created, info)
        self._text: dict[int, sse.Envelope] = {}
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        self._text[index] = sse.Envelope(self._chunk(index, sse.Envelope.hole()))
        self._logprobs[index] = CompletionLogprobs(len(echo))
        return self._text[index].render(echo) if echo else b""

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        text = delta.reasoning + delta.content
        if delta.logprobs:
            return sse.event(self._chunk(index, text, logprobs=self._logprobs[index].render(delta.logprobs)))
        return self._text[index].render(text) if text else b""

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        return sse.event(self._chunk(index, "", finish_reason=FINISH_REASONS[finish_reason]))

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return sse.encode_json(self.whole(choices, usage))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self._head | {"choices": [self._choice(choice) for choice in choices], "usage": usage.to_json()}

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._head | {"choices": [choice]}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        assert choice.finish_reason is not None
        logprobs = choice.logprobs
        return {
            "index": choice.index,
            "text": choice.echo + "".join(choice.text),
            "logprobs": None if logprobs is None else CompletionLogprobs(len(choice.echo)).render(logprobs),
            "finish_reason": FINISH_REASONS[choice.finish_reason],
        }
