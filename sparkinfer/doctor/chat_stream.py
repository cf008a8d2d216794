"""The rules that a stream of OpenAI's chat completions keeps. Knows no server: it reads events from somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.doctor.sse_events import SseEvent


class ChatStreamCheck:
    """Takes the events one by one; `problems` says what was wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._is_over = False
        self._has_failed = False
        self._has_usage = False
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self._num_calls: dict[int, int] = {}
        self._head: tuple[Any, ...] | None = None

    def take(self, event: SseEvent) -> None:
        """The next event."""
        chunk = event.data
        if self._is_over:
            self.problems.append("an event after [DONE]")
        elif chunk == "[DONE]":
            self._end()
        elif not isinstance(chunk, dict):
            self.problems.append(f"data is no object: {str(chunk)[:80]!r}")
        elif "error" in chunk:
            self._has_failed = True
            if not (isinstance(chunk["error"], dict) and chunk["error"].get("message")):
                self.problems.append("an error without a message")
        else:
            self._take_chunk(chunk)

    def end(self) -> None:
        """The body is over."""
        if not self._is_over:
            self.problems.append("the stream ended without [DONE]")

    def _end(self) -> None:
        self._is_over = True
        if not (self._started or self._has_failed):
            self.problems.append("[DONE] without an answer")
        if self._started - self._finished and not self._has_failed:
            self.problems.append("a choice without a finish_reason")

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        head = tuple(chunk.get(key) for key in ("id", "object", "created", "model"))
        if None in head:
            self.problems.append("a chunk without id, object, created or model")
        self._head = self._head or head
        if head != self._head:
            self.problems.append("a chunk of another answer")
        if self._has_usage:
            self.problems.append("a chunk after the usage")
        if not chunk["choices"]:
            self._has_usage = True
            if not chunk.get("usage"):
                self.problems.append("a chunk without choices and without usage")
            if self._started - self._finished:
                self.problems.append("usage before the last finish_reason")
        for choice in chunk["choices"]:
            self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index, delta = choice["index"], choice["delta"]
        if index in self._finished:
            self.problems.append(f"choice {index} goes on after its finish_reason")
        if index not in self._started and delta.get("role") != "assistant":
            self.problems.append(f"choice {index} does not begin with a role")
        self._started.add(index)
        if "finish_reason" not in choice:
            self.problems.append("a choice without the key finish_reason")
        if choice.get("finish_reason") is not None:
            self._finished.add(index)
        for call in delta.get("tool_calls") or []:
            self._take_call(index, call)

    def _take_call(self, choice: int, call: dict[str, Any]) -> None:
        known = self._num_calls.get(choice, 0)
        if call["index"] == known:
            self._num_calls[choice] = known + 1
            if not (call.get("id") and call.get("type") == "function" and call["function"].get("name")):
                self.problems.append("a call begins without id, type or name")
        elif call["index"] != known - 1:
            self.problems.append(f"call index {call['index']} after {known - 1}")
        elif call.get("id") or call["function"].get("name"):
            self.problems.append("a call's id or name comes twice")


def check_chat_stream(events: Sequence[SseEvent]) -> list[str]:
    """What is wrong with a whole stream, in words; nothing when it is empty."""
    check = ChatStreamCheck()
    for event in events:
        check.take(event)
    check.end()
    return check.problems
