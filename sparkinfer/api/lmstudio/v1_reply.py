"""The answer of POST /api/v1/chat: named events from chat.start to chat.end, or what the last one carries.

Knows no process. No tools are offered on this route, so there are no calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.blocks import Block, BlockSequence, ReplyDelta
from sparkinfer.api.lmstudio.errors import lmstudio_error
from sparkinfer.api.reply import Choice
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

Save = Callable[[str, list[Block]], Awaitable[bool]]  # keeps a finished answer, its id and blocks; whether it could

_NAMES = {"reasoning": "reasoning", "content": "message"}


class LmStudioReply:
    """One answer; requests of this API have one choice."""

    stream_headers = sse.HEADERS

    def __init__(self, reply_id: str, created: int, model: str, save: Save | None) -> None:
        """reply_id: hexadecimal, unique; save: None where nothing is to be kept; created: of no use to this API."""
        self._id = f"resp_{reply_id}"
        self._model = model
        self._save = save
        self._blocks = BlockSequence()
        self._open: Block | None = None
        self._is_begun = False
        self._is_prefill = True
        self._is_kept = False

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        return self._begin()

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        events = [self._end_prefill()]
        for block, text in self._blocks.add(delta):
            if block.kind == "call":
                continue
            if block is not self._open:
                events += [self._close(), _event(f"{_NAMES[block.kind]}.start")]
                self._open = block
            events.append(_event(f"{_NAMES[block.kind]}.delta", content=text))
        return b"".join(events)

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        return self._end_prefill() + self._close()

    def keep_alive(self) -> bytes:
        if not self._is_begun:
            return self._begin()
        return _event("prompt_processing.progress", progress=0) if self._is_prefill else sse.KEEP_ALIVE

    def end(self, usage: Usage | None) -> bytes:
        return _event("chat.end", result=self._result(self._blocks.blocks, usage or Usage()))

    async def keep(self, choices: Sequence[Choice] | None, usage: Usage) -> None:
        blocks = self._blocks.blocks if choices is None else choices[0].blocks.blocks
        self._is_kept = self._save is not None and await self._save(self._id, _shown(blocks))

    def failure(self, error: RequestError) -> bytes:
        result = self._result(self._blocks.blocks, Usage())
        told = _event("error", error=lmstudio_error(error))
        return self._begin() + self._close() + told + _event("chat.end", result=result)

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return sse.encode_json(self._result(choices[0].blocks.blocks, usage))

    def _begin(self) -> bytes:
        """The events that open the stream, once."""
        if self._is_begun:
            return b""
        self._is_begun = True
        opening = _event("chat.start", model_instance_id=self._model)
        return opening + _event("prompt_processing.start") + _event("prompt_processing.progress", progress=0)

    def _end_prefill(self) -> bytes:
        if not self._is_prefill:
            return b""
        self._is_prefill = False
        return _event("prompt_processing.progress", progress=1) + _event("prompt_processing.end")

    def _close(self) -> bytes:
        block, self._open = self._open, None
        return b"" if block is None else _event(f"{_NAMES[block.kind]}.end")

    def _result(self, blocks: list[Block], usage: Usage) -> dict[str, Any]:
        return {
            "model_instance_id": self._model,
            "output": [{"type": _NAMES[block.kind], "content": block.text} for block in _shown(blocks)],
            "stats": _stats(usage),
            **({"response_id": self._id} if self._is_kept else {}),
        }


def _shown(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if block.kind in _NAMES]


def _event(kind: str, **fields: Any) -> bytes:
    return sse.event({"type": kind, **fields}, kind)


def _stats(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "total_output_tokens": usage.completion_tokens,
        "reasoning_output_tokens": usage.reasoning_tokens,
        "tokens_per_second": usage.to_json()["decode_tps"],
        "time_to_first_token_seconds": round((usage.ttft_ms or 0.0) / 1000, 6),
    }
