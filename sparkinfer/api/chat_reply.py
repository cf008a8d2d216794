"""The answer of POST /v1/chat/completions: chat.completion.chunk events or one chat.completion object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.errors import error_object
from sparkinfer.api.logprobs import TokenLogprob, chat_logprobs
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.reply import FINISH_REASONS, Choice
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason


class ChatReply:
    """One answer. Reasoning goes out under both names in use, `reasoning` and `reasoning_content`, or not at all."""

    def __init__(self, reply_id: str, created: int, info: ModelInfo, *, exclude_reasoning: bool = False) -> None:
        """reply_id: hexadecimal, unique; created: Unix time."""
        self._head = {
            "id": f"chatcmpl-{reply_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": info.model,
            "system_fingerprint": info.fingerprint,
        }
        self._exclude_reasoning = exclude_reasoning
        self._content: dict[int, sse.Envelope] = {}
        self._reasoning: dict[int, sse.Envelope] = {}

    def start(self, index: int, echo: str) -> bytes:
        hole = sse.Envelope.hole()
        self._content[index] = sse.Envelope(self._chunk(index, {"content": hole}))
        self._reasoning[index] = sse.Envelope(self._chunk(index, {"reasoning": hole, "reasoning_content": hole}))
        return sse.event(self._chunk(index, {"role": "assistant", "content": None}))

    def delta(self, index: int, content: str, reasoning: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        if reasoning and not self._exclude_reasoning:
            if logprobs and not content:
                delta = {"reasoning": reasoning, "reasoning_content": reasoning}
                return sse.event(self._chunk(index, delta, logprobs=chat_logprobs(logprobs)))
            chunk = self._reasoning[index].render(reasoning)
            return chunk + self.delta(index, content, "", logprobs) if content else chunk
        if logprobs:
            return sse.event(self._chunk(index, {"content": content}, logprobs=chat_logprobs(logprobs)))
        return self._content[index].render(content) if content else b""

    def finish(self, index: int, finish_reason: FinishReason) -> bytes:
        return sse.event(self._chunk(index, {}, finish_reason=FINISH_REASONS[finish_reason]))

    def end(self, usage: Usage | None) -> bytes:
        if usage is None:
            return sse.DONE
        return sse.event(self._head | {"choices": [], "usage": usage.to_json()}) + sse.DONE

    def failure(self, error: RequestError) -> bytes:
        """An error event and then [DONE], because clients that read up to [DONE] would hang without it."""
        return sse.event(error_object(error)) + sse.DONE

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return sse.encode_json(
            self._head
            | {
                "object": "chat.completion",
                "choices": [self._choice(choice) for choice in choices],
                "usage": usage.to_json(),
            }
        )

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._head | {"choices": [choice]}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(choice.content), "refusal": None}
        reasoning = "".join(choice.reasoning)
        if reasoning and not self._exclude_reasoning:
            message |= {"reasoning": reasoning, "reasoning_content": reasoning}
        assert choice.finish_reason is not None
        return {
            "index": choice.index,
            "message": message,
            "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
            "finish_reason": FINISH_REASONS[choice.finish_reason],
        }
