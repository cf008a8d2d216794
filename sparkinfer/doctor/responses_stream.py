"""The rules that a stream of the Responses API keeps. Knows no server: it reads events that came from somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkinfer.doctor.json_text import is_object
from sparkinfer.doctor.sse_events import SseEvent

# The event that ends a stream -> what the response may say of itself.
_TERMINAL = {
    "response.completed": ("completed", "incomplete"),
    "response.incomplete": ("incomplete",),
    "response.failed": ("failed",),
}
_STATUS = ("response.created", "response.queued", "response.in_progress")
# Events about the open item -> the type it must have.
_OF_ITEM = {
    "response.content_part.added": ("message", "reasoning"),
    "response.content_part.done": ("message", "reasoning"),
    "response.output_text.delta": ("message",),
    "response.output_text.done": ("message",),
    "response.reasoning_text.delta": ("reasoning",),
    "response.reasoning_text.done": ("reasoning",),
    "response.function_call_arguments.delta": ("function_call",),
    "response.function_call_arguments.done": ("function_call",),
    "response.custom_tool_call_input.delta": ("custom_tool_call",),
    "response.custom_tool_call_input.done": ("custom_tool_call",),
}
_WHOLE = {"function_call": "arguments", "custom_tool_call": "input"}


class ResponsesStreamCheck:
    """Takes the events one by one; `problems` says what was wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._num_events = 0
        self._response_id = ""  # of the response, once it is created
        self._is_over = False
        self._num_items = 0
        self._open: dict[str, Any] | None = None
        self._has_part = False
        self._num_parts = 0  # of the open item
        self._text = ""
        self._is_done = False  # the open item's text is complete
        self._done: list[dict[str, Any]] = []

    def take(self, event: SseEvent) -> None:
        """The next event."""
        data = event.data
        if not isinstance(data, dict):
            self.problems.append(f"data is no object: {str(data)[:80]!r}")
            return
        kind = data.get("type", "")
        if event.name not in ("", kind):
            self.problems.append(f"event: {event.name!r} carries type {kind!r}")
        if data.get("sequence_number") != self._num_events:
            self.problems.append(f"{kind} has number {data.get('sequence_number')}, expected {self._num_events}")
        self._num_events += 1
        if self._is_over:
            self.problems.append(f"{kind} after the end")
        elif kind in _STATUS:
            self._status(kind, data)
        elif not self._response_id:
            self.problems.append(f"{kind} before response.created")
        elif kind in _TERMINAL:
            self._end(kind, data["response"])
        elif kind != "error":
            self._take_item(kind, data)

    def end(self) -> None:
        """The body is over."""
        if not self._is_over:
            self.problems.append("the stream ended without response.completed or response.failed")

    def _status(self, kind: str, data: dict[str, Any]) -> None:
        response_id = str(data["response"].get("id") or "")
        if (kind == "response.created") is bool(self._response_id):
            self.problems.append(f"{kind} {'again' if self._response_id else 'before response.created'}")
        if not response_id or self._response_id not in ("", response_id):
            self.problems.append(f"{kind} of the response {response_id!r}")
        self._response_id = self._response_id or response_id or "?"

    def _end(self, kind: str, response: dict[str, Any]) -> None:
        self._is_over = True
        if response.get("id") != self._response_id:
            self.problems.append(f"{kind} of another response")
        if response.get("status") not in _TERMINAL[kind]:
            self.problems.append(f"{kind} with status {response.get('status')!r}")
        if kind == "response.failed":
            if not response["error"]:
                self.problems.append("response.failed without an error")
            return
        if self._open is not None:
            self.problems.append(f"{kind} inside an item")
        if response["output"] != self._done:
            self.problems.append("the final output is not what the items were")
        if not self._done:
            self.problems.append(f"{kind} without an item")
        usage = response["usage"] or {}
        counts = [int(usage.get(key, -1)) for key in ("input_tokens", "output_tokens", "total_tokens")]
        if min(counts) < 0 or counts[0] + counts[1] != counts[2]:
            self.problems.append(f"{kind} without usage that adds up")

    def _take_item(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "response.output_item.added":
            self._add(data)
        elif self._open is None:
            self.problems.append(f"{kind} without an open item")
        elif kind == "response.output_item.done":
            self._finish(data)
        elif kind not in _OF_ITEM:
            self.problems.append(f"unknown type {kind!r}")
        else:
            self._inside(kind, data, self._open)

    def _add(self, data: dict[str, Any]) -> None:
        if self._open is not None:
            self.problems.append("an item starts inside another")
        if data["output_index"] != self._num_items:
            self.problems.append(f"output_index {data['output_index']}, expected {self._num_items}")
        self._num_items += 1
        self._open, self._has_part, self._text, self._is_done = data["item"], False, "", False
        self._num_parts = 0
        self._check_call(data["item"])

    def _inside(self, kind: str, data: dict[str, Any], item: dict[str, Any]) -> None:
        if data["item_id"] != item["id"] or data["output_index"] != self._num_items - 1:
            self.problems.append(f"{kind} is about another item")
        if item["type"] not in _OF_ITEM[kind]:
            self.problems.append(f"{kind} in an item of type {item['type']}")
        verb = kind.rpartition(".")[2]
        if "content_part" in kind:
            if (verb == "added") is self._has_part:
                self.problems.append(f"{kind} out of order")
            self._has_part = verb == "added"
            self._num_parts += self._has_part
        if item["type"] not in _WHOLE and data.get("content_index") != self._num_parts - 1:
            self.problems.append(f"{kind} with content_index {data.get('content_index')}")
        if "content_part" in kind:
            return
        if item["type"] not in _WHOLE and not self._has_part:
            self.problems.append(f"{kind} outside a part")
        if "output_text" in kind and not isinstance(data.get("logprobs"), list):
            self.problems.append(f"{kind} without a list of logprobs")
        if self._is_done:
            self.problems.append(f"{kind} after the item's text was done")
        if verb == "delta":
            self._text += data["delta"]
            return
        self._is_done = True
        if data.get("text", data.get("arguments", data.get("input"))) != self._text:
            self.problems.append(f"{kind} is not the sum of its deltas")

    def _finish(self, data: dict[str, Any]) -> None:
        item, opened = data["item"], self._open or {}
        if (item["id"], item["type"]) != (opened["id"], opened["type"]):
            self.problems.append("response.output_item.done is about another item")
        if data["output_index"] != self._num_items - 1:
            self.problems.append(f"response.output_item.done with output_index {data['output_index']}")
        self._check_call(item)
        if item["type"] == "function_call" and item.get("status") != "incomplete" and not is_object(item["arguments"]):
            self.problems.append("the arguments of a call are no object of JSON")
        if self._has_part:
            self.problems.append("an item ends with an open part")
        if not self._is_done:
            self.problems.append("an item ends before its text was done")
        key = _WHOLE.get(item["type"])
        text = item[key] if key else "".join(part["text"] for part in item["content"])
        if text != self._text:
            self.problems.append("an item is not the sum of its deltas")
        self._done.append(item)
        self._open = None

    def _check_call(self, item: dict[str, Any]) -> None:
        if item["type"] in _WHOLE and not (item.get("name") and item.get("call_id")):
            self.problems.append("a call without name or call_id")


def check_responses_stream(events: Sequence[SseEvent]) -> list[str]:
    """What is wrong with a whole stream, in words; nothing when it is empty."""
    check = ResponsesStreamCheck()
    for event in events:
        check.take(event)
    check.end()
    return check.problems
