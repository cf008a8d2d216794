"""LM Studio's API version 0: OpenAI's completions with figures added to what is sent whole, or last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.chat_reply import ChatReply
from sparkinfer.api.completions_reply import CompletionReply
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.reply import Choice
from sparkinfer.api.schema import Object
from sparkinfer.api.usage import Usage
from sparkinfer.request import FinishReason

_STOP_REASONS = {
    FinishReason.STOP: "eosFound",
    FinishReason.LENGTH: "maxPredictedTokensReached",
    FinishReason.TOOL_CALLS: "toolCalls",
}


class V0Reply:
    """Another reply's answer with the figures. A Reply."""

    stream_headers = sse.HEADERS

    def __init__(self, reply: ChatReply | CompletionReply, info: ModelInfo) -> None:
        self._reply = reply
        self._info = info
        self._stop_reason = ""
        self.start, self.delta = reply.start, reply.delta
        self.keep_alive, self.failure = reply.keep_alive, reply.failure

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        if index == 0:
            self._stop_reason = _stop_reason(finish_reason, stop_string)
        return self._reply.finish(index, finish_reason, stop_string)

    def end(self, usage: Usage | None) -> bytes:
        if usage is None:
            return self._reply.end(usage)
        last = self._reply.last_chunk(usage) | _figures(self._info, self._stop_reason, usage)
        return sse.event(last) + sse.DONE

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        figures = _figures(self._info, _reason_of(choices[0]), usage)
        return sse.encode_json(self._reply.whole(choices, usage) | figures)


def without_endless(body: Object) -> Object:
    """max_tokens -1 stands for no limit there."""
    return {**body, "max_tokens": None} if body.get("max_tokens") == -1 else body


def _stop_reason(finish_reason: FinishReason, stop_string: str | None) -> str:
    return "stopStringFound" if stop_string is not None else _STOP_REASONS[finish_reason]


def _reason_of(choice: Choice) -> str:
    assert choice.finish_reason is not None
    return _stop_reason(choice.finish_reason, choice.stop_string)


def _figures(info: ModelInfo, reason: str, usage: Usage) -> dict[str, Any]:
    ttft_s = (usage.ttft_ms or 0.0) / 1000
    generation_s = max(1e-3, usage.generation_ms / 1000 - ttft_s)
    return {
        "stats": {
            "tokens_per_second": round(usage.completion_tokens / generation_s, 3),
            "time_to_first_token": round(ttft_s, 6),
            "generation_time": round(generation_s, 6),
            "stop_reason": reason,
        },
        "model_info": {
            "arch": info.architecture,
            "quant": info.quantization,
            "format": "gguf",
            "context_length": info.max_model_len,
        },
        "runtime": {"name": "sparkinfer", "version": "1", "supported_formats": ["gguf"]},
    }
