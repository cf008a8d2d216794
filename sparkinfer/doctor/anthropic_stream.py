"""The rules that a stream of the Messages API keeps. Knows no server: it reads events that came from somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.doctor.json_text import is_object
from sparkinfer.doctor.sse_events import SseEvent

_DELTAS = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
}


class MessagesStreamCheck:
    """Takes the events one by one; `problems` says what was wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._has_started = False
        self._open: tuple[int, str] | None = None  # index and type of the block that is open
        self._is_signed = False
        self._inputs: list[str] = []  # of the calls, as JSON
        self._num_blocks = 0
        self._stop_reason: str | None = None
        self._is_over = False

    def take(self, event: SseEvent) -> None:
        """The next event."""
        data = event.data
        if not isinstance(data, dict):
            self.problems.append(f"data is no object: {str(data)[:80]!r}")
            return
        kind = data.get("type", "")
        if event.name != kind:
            self.problems.append(f"event: {event.name!r} carries type {kind!r}")
        if self._is_over:
            self.problems.append(f"{kind} after the end")
        elif kind == "message_start":
            self._start(data)
        elif kind == "error":
            self._is_over = True
        elif not self._has_started:
            self.problems.append(f"{kind} before message_start")
        else:
            self._take_inner(kind, data)

    def end(self) -> None:
        """The body is over."""
        if not self._is_over:
            self.problems.append("the stream ended without message_stop or error")

    def _start(self, data: dict[str, Any]) -> None:
        if self._has_started:
            self.problems.append("a second message_start")
        self._has_started = True
        message = data["message"]
        if message["usage"]["input_tokens"] + (message["usage"].get("cache_read_input_tokens") or 0) < 1:
            self.problems.append("message_start without the size of the prompt")
        if not message.get("id") or message.get("role") != "assistant" or message.get("content") != []:
            self.problems.append("message_start without id, role or empty content")

    def _take_inner(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "content_block_start":
            self._start_block(data)
        elif kind == "content_block_delta":
            self._delta(data)
        elif kind == "content_block_stop":
            self._stop_block(data)
        elif kind == "message_delta":
            if self._open is not None:
                self.problems.append("message_delta inside a block")
            if self._stop_reason is not None:
                self.problems.append("a second message_delta")
            self._end_message(data)
        elif kind == "message_stop":
            if self._stop_reason is None:
                self.problems.append("message_stop before message_delta")
            self._is_over = True
        elif kind != "ping":
            self.problems.append(f"unknown type {kind!r}")

    def _end_message(self, data: dict[str, Any]) -> None:
        self._stop_reason = data["delta"]["stop_reason"]
        if not self._stop_reason:
            self.problems.append("message_delta without a stop_reason")
        if not isinstance((data.get("usage") or {}).get("output_tokens"), int):
            self.problems.append("message_delta without output_tokens")
        if self._stop_reason == "tool_use" and not self._inputs:
            self.problems.append("stop_reason tool_use without a call")
        if self._stop_reason != "max_tokens" and not all(is_object(text or "{}") for text in self._inputs):
            self.problems.append("the input of a call is no object of JSON")

    def _start_block(self, data: dict[str, Any]) -> None:
        if self._open is not None:
            self.problems.append(f"block {data['index']} starts inside block {self._open[0]}")
        if self._stop_reason is not None:
            self.problems.append("a block after message_delta")
        if data["index"] != self._num_blocks:
            self.problems.append(f"block index {data['index']}, expected {self._num_blocks}")
        self._num_blocks += 1
        block = data["content_block"]
        self._open = (data["index"], block["type"])
        if block["type"] == "tool_use":
            self._inputs.append("")
            if not (block.get("id") and block.get("name") and block.get("input") == {}):
                self.problems.append("a tool_use block begins without id, name or empty input")
        self._is_signed = False

    def _delta(self, data: dict[str, Any]) -> None:
        kind = data["delta"]["type"]
        if self._open is None or self._open[0] != data["index"]:
            self.problems.append(f"{kind} for block {data['index']}, which is not open")
        elif kind not in _DELTAS.get(self._open[1], ()):
            self.problems.append(f"{kind} in a block of type {self._open[1]}")
        elif self._is_signed:
            self.problems.append(f"{kind} after the signature")
        elif kind == "input_json_delta":
            self._inputs[-1] += data["delta"]["partial_json"]
        self._is_signed = kind == "signature_delta"

    def _stop_block(self, data: dict[str, Any]) -> None:
        if self._open is None or self._open[0] != data["index"]:
            self.problems.append(f"stop of block {data['index']}, which is not open")
        elif self._open[1] == "thinking" and not self._is_signed:
            self.problems.append("a thinking block without a signature")
        self._open = None


def check_messages_stream(events: Sequence[SseEvent]) -> list[str]:
    """What is wrong with a whole stream, in words; nothing when it is empty."""
    check = MessagesStreamCheck()
    for event in events:
        check.take(event)
    check.end()
    return check.problems
