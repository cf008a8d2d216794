"""The answer of POST /v1/messages: a stream of typed events or one message.

Blocks follow each other and never overlap: start, deltas of the block's own kind, stop. Knows no process.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.anthropic.errors import anthropic_error
from sparkinfer.api.blocks import Block, BlockSequence, ReplyDelta
from sparkinfer.api.reply import Choice
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

_STOP_REASONS = {
    FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use",
}  # fmt: skip
_PING = sse.event({"type": "ping"}, "ping")


class MessagesReply:
    """One answer; requests of this API have one choice."""

    stream_headers = sse.HEADERS

    def __init__(self, reply_id: str, created: int, model: str, *, shows_thinking: bool) -> None:
        """reply_id: hexadecimal, unique; model: as the client calls it; created: of no use to this API."""
        self._id = f"msg_{reply_id}"
        self._model = model
        self._shows_thinking = shows_thinking
        self._blocks = BlockSequence()
        self._open: Block | None = None
        self._position = -1
        self._envelope: sse.Envelope | None = None
        self._stop: tuple[FinishReason, str | None] = (FinishReason.STOP, None)

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        usage = _usage(num_prompt_tokens, 0, 0)
        return sse.event({"type": "message_start", "message": self._message([], None, None, usage)}, "message_start")

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        events = []
        for block, text in self._blocks.add(delta):
            if block is not self._open:
                events += [self._close(), self._begin(block)]
            if text and self._envelope is not None:
                events.append(self._envelope.render(text))
        return b"".join(events)

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        self._stop = (finish_reason, stop_string)
        return self._close()

    def keep_alive(self) -> bytes:
        return _PING

    def end(self, usage: Usage | None) -> bytes:
        reason, stop_sequence = _stop(*self._stop)
        event = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop_sequence},
            "usage": _final_usage(usage or Usage()),
        }
        return sse.event(event, "message_delta") + sse.event({"type": "message_stop"}, "message_stop")

    def failure(self, error: RequestError) -> bytes:
        return sse.event(anthropic_error(error), "error")

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        choice = choices[0]
        assert choice.finish_reason is not None
        reason, stop_sequence = _stop(choice.finish_reason, choice.stop_string)
        content = [self._whole_block(block) for block in choice.blocks.blocks]
        return sse.encode_json(self._message(content, reason, stop_sequence, _final_usage(usage)))

    def _begin(self, block: Block) -> bytes:
        self._open = block
        self._position += 1
        kind, key = _DELTAS[block.kind]
        is_shown = self._shows_thinking or block.kind != "reasoning"
        event = self._event("content_block_delta", delta={"type": kind, key: sse.Envelope.hole()})
        self._envelope = sse.Envelope(event, "content_block_delta") if is_shown else None
        return sse.event(self._event("content_block_start", content_block=_empty_block(block)), "content_block_start")

    def _close(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        stop = sse.event(self._event("content_block_stop"), "content_block_stop")
        if block.kind != "reasoning":
            return stop
        signature = {"type": "signature_delta", "signature": _signature(block.text)}
        return sse.event(self._event("content_block_delta", delta=signature), "content_block_delta") + stop

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "index": self._position, **fields}

    def _whole_block(self, block: Block) -> dict[str, Any]:
        if block.kind == "reasoning":
            thinking = block.text if self._shows_thinking else ""
            return {"type": "thinking", "thinking": thinking, "signature": _signature(block.text)}
        if block.kind == "content":
            return {"type": "text", "text": block.text, "citations": None}
        return _empty_block(block) | {"input": _arguments(block.text)}

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop_sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
        }


_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "content": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def _empty_block(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if block.kind == "content":
        return {"type": "text", "text": ""}
    call_id = f"toolu_{block.call_id.removeprefix('call_')}"
    return {"type": "tool_use", "id": call_id, "name": block.name, "input": {}}


def _arguments(text: str) -> Any:
    """The call's input. An answer that was cut off inside a call may end in half a document."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _signature(thinking: str) -> str:
    """Clients drop thinking without a signature, and send it back with it; nobody here reads it."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def _stop(reason: FinishReason, stop_string: str | None) -> tuple[str, str | None]:
    return ("stop_sequence", stop_string) if stop_string is not None else (_STOP_REASONS[reason], None)


def _final_usage(usage: Usage) -> dict[str, Any]:
    return _usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _usage(num_prompt_tokens: int, num_cached: int, num_output_tokens: int) -> dict[str, Any]:
    """The three input counts add up to the prompt. What is computed anew costs no more for being kept."""
    return {
        "input_tokens": num_prompt_tokens - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output_tokens,
    }
