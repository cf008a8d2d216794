"""The answer to a prediction of an LM Studio SDK: messages of its channel, one JSON object a line.

Reasoning is text between tags there, told apart by the type of each fragment. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from sparkinfer.api.blocks import Block, BlockSequence, ReplyDelta
from sparkinfer.api.lmstudio.sdk_documents import instance_facts, load_config, sdk_error
from sparkinfer.api.lmstudio.sdk_request import Prediction
from sparkinfer.api.lmstudio.sdk_settings import echoed_fields
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.reply import Choice
from sparkinfer.api.sse import encode_json
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

FragmentKind = Literal["none", "reasoning", "reasoningStartTag", "reasoningEndTag"]

_STOP_REASONS = {
    FinishReason.STOP: "eosFound",
    FinishReason.LENGTH: "maxPredictedTokensReached",
    FinishReason.TOOL_CALLS: "toolCalls",
}


class PredictionReply:
    """One answer; a prediction has one choice, and is always streamed."""

    stream_headers: list[tuple[str, str]] = []  # there are none on a channel

    def __init__(self, reply_id: str, created: int, info: ModelInfo, prediction: Prediction) -> None:
        """reply_id, created: of no use to this API."""
        self._info = info
        self._tags = prediction.reasoning_tags
        self._settings = prediction.settings
        self._blocks = BlockSequence()
        self._open: Block | None = None
        self._stop_reason = "eosFound"

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        return _line("promptProcessingProgress", progress=0)

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        lines = []
        num_tokens = 1
        for block, text in self._blocks.add(delta):
            if block is not self._open:
                lines.append(self._switch(block))
            if block.kind == "call":
                if text:
                    lines.append(_line("toolCallGenerationArgumentFragmentGenerated", content=text))
            else:
                is_reasoning = block.kind == "reasoning" and self._tags is not None
                lines.append(_fragment(text, "reasoning" if is_reasoning else "none", num_tokens))
            num_tokens = 0
        return b"".join(lines)

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        self._stop_reason = "stopStringFound" if stop_string is not None else _STOP_REASONS[finish_reason]
        return self._switch(None)

    def keep_alive(self) -> bytes:
        return _line("promptProcessingProgress", progress=0 if self._open is None else 1)

    def end(self, usage: Usage | None) -> bytes:
        return self._success(usage or Usage(), self._stop_reason)

    def stopped(self) -> bytes:
        """The client cancelled, and waits to hear so."""
        return self._success(Usage(), "userStopped")

    def failure(self, error: RequestError) -> bytes:
        return _line("error", error=sdk_error(error, self._info.model))

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return self.end(usage)

    def _switch(self, block: Block | None) -> bytes:
        """End the block that is open, and begin the next."""
        last, self._open = self._open, block
        lines = []
        if last is not None and last.kind == "call":
            lines.append(_end_call(last))
        if last is not None and last.kind == "reasoning" and self._tags is not None:
            lines.append(_fragment(self._tags[1], "reasoningEndTag", 0))
        if block is not None and block.kind == "call":
            lines.append(_line("toolCallGenerationStart", toolCallId=block.call_id))
            lines.append(_line("toolCallGenerationNameReceived", name=block.name))
        if block is not None and block.kind == "reasoning" and self._tags is not None:
            lines.append(_fragment(self._tags[0], "reasoningStartTag", 0))
        return b"".join(lines)

    def _success(self, usage: Usage, stop_reason: str) -> bytes:
        stats = {
            "stopReason": stop_reason,
            "tokensPerSecond": usage.to_json()["decode_tps"],
            "timeToFirstTokenSec": round((usage.ttft_ms or 0.0) / 1000, 6),
            "promptTokensCount": usage.prompt_tokens,
            "predictedTokensCount": usage.completion_tokens,
            "totalTokensCount": usage.prompt_tokens + usage.completion_tokens,
        }
        return _line(
            "success",
            stats=stats,
            modelInfo=instance_facts(self._info),
            loadModelConfig=load_config(self._info),
            predictionConfig=echoed_fields(self._settings.values),
        )


def _line(kind: str, **fields: Any) -> bytes:
    return encode_json({"type": kind, **fields}) + b"\n"


def _fragment(text: str, kind: FragmentKind, num_tokens: int) -> bytes:
    fragment = {
        "content": text, "tokensCount": num_tokens, "containsDrafted": False, "reasoningType": kind,
        "isStructural": kind.endswith("Tag"),
    }  # fmt: skip
    return _line("fragment", fragment=fragment)


def _end_call(block: Block) -> bytes:
    """The whole call; one that a limit cut short has failed."""
    try:
        arguments = msgspec.json.decode(block.text or "{}")
    except msgspec.DecodeError:
        return _line("toolCallGenerationFailed", error=sdk_error(RequestError(502, "The answer ended inside a call")))
    request = {"type": "function", "id": block.call_id, "name": block.name, "arguments": arguments}
    return _line("toolCallGenerationEnd", toolCallRequest=request)
