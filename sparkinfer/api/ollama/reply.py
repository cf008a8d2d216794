"""The answers of POST /api/chat and /api/generate: lines of JSON, or the last of them with everything in it.

Knows no process. Durations are whole nanoseconds; calls go out whole, their arguments as objects.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from sparkinfer.api.blocks import Block, BlockSequence, ReplyDelta
from sparkinfer.api.logprobs import TokenLogprob, chat_logprobs
from sparkinfer.api.model_facts import timestamp
from sparkinfer.api.ollama.errors import ollama_error_json
from sparkinfer.api.reply import Choice
from sparkinfer.api.sse import encode_json
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

_HEADERS = [
    ("content-type", "application/x-ndjson"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
]


class OllamaReply:
    """One answer; requests of this API have one choice."""

    stream_headers = _HEADERS

    def __init__(self, reply_id: str, created: int, model: str, *, is_chat: bool) -> None:
        """model: as the client calls it; is_chat: of /api/chat, else /api/generate; the others: of no use here."""
        self._model = model
        self._is_chat = is_chat
        self._calls = BlockSequence()
        self._num_calls = 0  # that went out
        self._reason = FinishReason.STOP
        self._started_at = time.monotonic()

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        return b""

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        self._calls.take(delta)
        if not (delta.content or delta.reasoning or delta.logprobs):
            return self._ready_calls(is_over=False)
        line = self._line(delta.content, delta.reasoning, [])
        if delta.logprobs:
            line["logprobs"] = _logprobs(delta.logprobs)
        return self._ready_calls(is_over=False) + _encode(line)

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        self._reason = finish_reason
        return self._ready_calls(is_over=True)

    def keep_alive(self) -> bytes:
        """A line without news: clients parse whatever is not empty, and some what is."""
        return _encode(self._line("", "", []))

    def end(self, usage: Usage | None) -> bytes:
        return _encode(self._line("", "", []) | self._end(self._reason, usage or Usage()))

    def failure(self, error: RequestError) -> bytes:
        return ollama_error_json(error) + b"\n"

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        choice = choices[0]
        assert choice.finish_reason is not None
        blocks = [block for block in choice.blocks.blocks if block.kind == "call"]
        calls = [_call(block, i) for i, block in enumerate(blocks) if _is_whole(block)]
        line = self._line("".join(choice.content), "".join(choice.reasoning), calls)
        if choice.logprobs is not None:
            line["logprobs"] = _logprobs(choice.logprobs)
        return encode_json(line | self._end(choice.finish_reason, usage))

    def _ready_calls(self, *, is_over: bool) -> bytes:
        """Lines for the calls that are complete: those that something followed, and at the end the last one too."""
        calls = [block for block in self._calls.blocks if block.kind == "call"]
        is_growing = not is_over and bool(self._calls.blocks) and self._calls.blocks[-1].kind == "call"
        ready = calls[self._num_calls : len(calls) - is_growing]
        first = self._num_calls
        self._num_calls += len(ready)
        lines = [self._line("", "", [_call(call, first + i)]) for i, call in enumerate(ready) if _is_whole(call)]
        return b"".join(_encode(line) for line in lines)

    def _line(self, content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        line: dict[str, Any] = {"model": self._model, "created_at": timestamp(time.time())}
        if not self._is_chat:
            return line | {"response": content, **({"thinking": thinking} if thinking else {}), "done": False}
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return line | {"message": message, "done": False}

    def _end(self, reason: FinishReason, usage: Usage) -> dict[str, Any]:
        total = int((time.monotonic() - self._started_at) * 1e9)
        prompt = int((usage.ttft_ms or 0.0) * 1e6)
        generation = max(0, int(usage.generation_ms * 1e6) - prompt)
        return {
            "done": True,
            "done_reason": "length" if reason is FinishReason.LENGTH else "stop",
            "total_duration": max(total, prompt + generation),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": usage.completion_tokens,
            "eval_duration": generation,
        }


def _encode(line: dict[str, Any]) -> bytes:
    return encode_json(line) + b"\n"


def _is_whole(block: Block) -> bool:
    """An answer that ran out of tokens may end inside a call."""
    try:
        return isinstance(json.loads(block.text or "{}"), dict)
    except ValueError:
        return False


def _call(block: Block, index: int) -> dict[str, Any]:
    arguments = json.loads(block.text or "{}")
    return {"id": block.call_id, "function": {"index": index, "name": block.name, "arguments": arguments}}


def _logprobs(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return list(chat_logprobs(entries)["content"])
