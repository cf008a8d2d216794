"""The answer of POST /v1/completions: text_completion events or one text_completion object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.errors import error_object
from sparkinfer.api.logprobs import CompletionLogprobs, TokenLogprob
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.reply import FINISH_REASONS, Choice
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason


class CompletionReply:
    """One answer. A completion has no place for reasoning of its own, so it is part of the text."""

    def __init__(self, reply_id: str, created: int, info: ModelInfo) -> None:
        """reply_id: hexadecimal, unique; created: Unix time."""
        self._head = {
            "id": f"cmpl-{reply_id}",
            "object": "text_completion",
            "created": created,
            "model": info.model,
            "system_fingerprint": info.fingerprint,
        }
        self._text: dict[int, sse.Envelope] = {}
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def start(self, index: int, echo: str) -> bytes:
        self._text[index] = sse.Envelope(self._chunk(index, sse.Envelope.hole()))
        self._logprobs[index] = CompletionLogprobs(len(echo))
        return self._text[index].render(echo) if echo else b""

    def delta(self, index: int, content: str, reasoning: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        text = reasoning + content
        if logprobs:
            return sse.event(self._chunk(index, text, logprobs=self._logprobs[index].render(logprobs)))
        return self._text[index].render(text) if text else b""

    def finish(self, index: int, finish_reason: FinishReason) -> bytes:
        return sse.event(self._chunk(index, "", finish_reason=FINISH_REASONS[finish_reason]))

    def end(self, usage: Usage | None) -> bytes:
        if usage is None:
            return sse.DONE
        return sse.event(self._head | {"choices": [], "usage": usage.to_json()}) + sse.DONE

    def failure(self, error: RequestError) -> bytes:
        """An error event and then [DONE], because clients that read up to [DONE] would hang without it."""
        return sse.event(error_object(error)) + sse.DONE

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return sse.encode_json(
            self._head | {"choices": [self._choice(choice) for choice in choices], "usage": usage.to_json()}
        )

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
