"""The answer of POST /v1/chat/completions: chat.completion.chunk events or one chat.completion object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.logprobs import chat_logprobs
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.openai_stream import OpenAIStream
from sparkinfer.api.reply import FINISH_REASONS, Choice, ReplyDelta
from sparkinfer.api.usage import Usage
from sparkinfer.request import FinishReason, ToolCallDelta


class ChatReply(OpenAIStream):
    """One answer. Reasoning goes out under both names in use, `reasoning` and `reasoning_content`, or not at all."""

    def __init__(self, reply_id: str, created: int, info: ModelInfo, *, exclude_reasoning: bool = False) -> None:
        """reply_id: hexadecimal, unique; created: Unix time."""
        super().__init__(f"chatcmpl-{reply_id}", "chat.completion.chunk", created, info)
        self._exclude_reasoning = exclude_reasoning
        self._content: dict[int, sse.Envelope] = {}
        self._reasoning: dict[int, sse.Envelope] = {}

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        hole = sse.Envelope.hole()
        self._content[index] = sse.Envelope(self._chunk(index, {"content": hole}))
        self._reasoning[index] = sse.Envelope(self._chunk(index, {"reasoning": hole, "reasoning_content": hole}))
        return sse.event(self._chunk(index, {"role": "assistant", "content": None}))

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        reasoning = "" if self._exclude_reasoning else delta.reasoning
        if delta.logprobs or delta.tool_calls:
            return self._rare_delta(index, delta, reasoning)
        chunk = self._reasoning[index].render(reasoning) if reasoning else b""
        return chunk + self._content[index].render(delta.content) if delta.content else chunk

    def _rare_delta(self, index: int, delta: ReplyDelta, reasoning: str) -> bytes:
        """One chunk for everything; the content of a delta with logprobs alone is empty, not absent."""
        fields: dict[str, Any] = {}
        if reasoning:
            fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if delta.content or not (reasoning or delta.tool_calls):
            fields["content"] = delta.content
        if delta.tool_calls:
            fields["tool_calls"] = [_call_delta(call) for call in delta.tool_calls]
        return sse.event(self._chunk(index, fields, logprobs=chat_logprobs(delta.logprobs) if delta.logprobs else None))

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        return sse.event(self._chunk(index, {}, finish_reason=FINISH_REASONS[finish_reason]))

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return sse.encode_json(self.whole(choices, usage))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self._head | {
            "object": "chat.completion",
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage.to_json(),
        }

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
        content = "".join(choice.content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.tool_calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": "".join(call.arguments)}}
                for call in choice.tool_calls
            ]  # fmt: skip
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


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if not call.name:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
