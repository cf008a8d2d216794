"""Input items of the Responses API to the conversation model, with every error located.

Reasoning, text and calls that follow each other make one assistant message. What hosted tools left in a history
(searches, images, interpreters) is passed over: no tool of that kind is offered here. A call that a limit cut off
stays, with what there is of it, so that the model can make sense of what its client says of it. Knows no template.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from sparkinfer.api.json_body import parse_json
from sparkinfer.api.messages import MAX_MESSAGES, ROLES
from sparkinfer.api.responses.tools import CUSTOM_INPUT, flat_name
from sparkinfer.api.schema import Object, as_list, as_object, as_str, fail, join, read_list, read_str
from sparkinfer.errors import RequestError
from sparkinfer.request import Message, ToolCall

REASONING_PREFIX = "sparkinfer:"  # of encrypted_content: reasoning that a client carries for us
UNFINISHED = "unfinished_arguments"  # name of the one argument of a call whose text ended too early
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_PASSED_OVER = frozenset({
    "web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "mcp_list_tools",
    "mcp_call", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
    "computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output",
    "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output",
    "compaction_trigger", "program", "program_output",
    "additional_tools", "configuration_update",  # see late_changes.py
})  # fmt: skip


class Conversation:
    """Grows by one item at a time; `messages` after `finish`."""

    def __init__(self, instructions: str) -> None:
        self.messages: list[Message] = []
        if instructions:
            self.messages.append(Message(role="system", content=instructions))
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._open_calls: dict[str, str] = {}  # id -> name
        self._is_open = False  # an assistant message is being put together

    def add(self, item: Object, path: str) -> None:
        """The next item."""
        kind = read_str(item, "type", path) or "message"
        if kind == "message":
            self._add_message(item, path)
        elif kind == "reasoning":
            self._add_reasoning(item, path)
        elif kind in ("function_call", "custom_tool_call"):
            self._add_call(item, path, is_custom=kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_output(item, path)
        elif kind == "item_reference":
            fail(path, "items cannot be referred to: nothing but whole responses is stored; send the item itself")
        elif kind == "compaction":
            fail(path, "holds a conversation that another server encrypted, which nobody here can read")
        elif kind not in _PASSED_OVER:
            fail(join(path, "type"), f"items of type {kind[:64]!r} are not supported here")
        if len(self.messages) > MAX_MESSAGES:
            fail(path, f"is beyond the {MAX_MESSAGES} messages of a conversation")

    def finish(self, path: str) -> tuple[Message, ...]:
        """All messages."""
        self._close_turn(path)
        self._check_answered(path)
        return tuple(self.messages)

    def _add_message(self, item: Object, path: str) -> None:
        name = read_str(item, "role", path)
        if name is None or name not in ROLES or name == "tool":
            fail(join(path, "role"), f"must be one of user, assistant, system, developer, got {name and name[:64]!r}")
        text = _read_content(item.get("content"), join(path, "content"))
        if ROLES[name] == "assistant":
            if self._texts and not self._calls:
                self._close_turn(path)
            self._is_open = True
            self._texts.append(text)
            return
        self._close_turn(path)
        self._check_answered(path)
        self.messages.append(Message(role=ROLES[name], content=text))

    def _add_reasoning(self, item: Object, path: str) -> None:
        if self._texts and not self._calls:
            self._close_turn(path)
        self._is_open = True
        self._reasoning.append(_read_reasoning(item, path))

    def _add_call(self, item: Object, path: str, *, is_custom: bool) -> None:
        call_id = as_str(item.get("call_id"), join(path, "call_id"))
        name = flat_name(as_str(item.get("name"), join(path, "name")), read_str(item, "namespace", path))
        if not call_id or not name:
            fail(path, "call_id and name must not be empty")
        if call_id in self._open_calls:
            fail(join(path, "call_id"), f"the id {call_id[:64]!r} is used twice")
        if is_custom:
            value = as_str(item.get("input"), join(path, "input"))
            arguments = msgspec.json.encode({CUSTOM_INPUT: value}).decode()
        else:
            arguments = _read_arguments(item, join(path, "arguments"))
        self._is_open = True
        self._open_calls[call_id] = name
        self._calls.append(ToolCall(id=call_id, name=name, arguments=arguments))

    def _add_output(self, item: Object, path: str) -> None:
        call_id = as_str(item.get("call_id"), join(path, "call_id"))
        self._close_turn(path)
        name = self._open_calls.pop(call_id, None)
        if name is None:
            fail(join(path, "call_id"), f"no tool call found for the output of {call_id[:64]!r}")
        output = item.get("output")
        text = "" if output == [] else _read_content(output, join(path, "output"))
        self.messages.append(Message(role="tool", content=text, name=name, tool_call_id=call_id))

    def _close_turn(self, path: str) -> None:
        """End the assistant message, if one is open. Reasoning that led to nothing is dropped."""
        if self._is_open and (self._texts or self._calls):
            self._check_answered(path, but=len(self._calls))
            self.messages.append(
                Message(
                    role="assistant",
                    content="".join(self._texts),
                    reasoning="".join(self._reasoning) or None,
                    tool_calls=tuple(self._calls),
                )
            )
        self._is_open = False
        self._reasoning, self._texts, self._calls = [], [], []

    def _check_answered(self, path: str, but: int = 0) -> None:
        """Every call has its output; the newest `but` calls may still wait for theirs."""
        if len(self._open_calls) > but:
            call_id = next(iter(self._open_calls))
            fail(path, f"no tool output found for the call {call_id[:64]!r} before this item")


def encode_reasoning(text: str) -> str:
    """encrypted_content that brings `text` back with the client's next request. Encoded, not encrypted."""
    return REASONING_PREFIX + base64.b64encode(text.encode()).decode()


def _read_reasoning(item: Object, path: str) -> str:
    """Its content, or what we put into encrypted_content, or its summary; another server's secrets are none of ours."""
    for key in ("content", "encrypted_content", "summary"):
        if key == "encrypted_content":
            hidden = read_str(item, key, path) or ""
            if hidden.startswith(REASONING_PREFIX):
                return _decoded(hidden)
            continue
        parts = read_list(item, key, path) or []
        texts = [
            as_str(as_object(part, f"{path}.{key}[{i}]").get("text"), f"{path}.{key}[{i}].text")
            for i, part in enumerate(parts)
        ]
        if texts:
            return "\n".join(texts)
    return ""


def _decoded(hidden: str) -> str:
    try:
        return base64.b64decode(hidden.removeprefix(REASONING_PREFIX), validate=True).decode()
    except ValueError:
        return ""


def _read_content(value: Any, path: str) -> str:
    """A string, or parts of text joined without anything between."""
    if isinstance(value, str):
        return value
    parts = as_list(value, path)
    return "".join(_read_part(as_object(part, f"{path}[{i}]"), f"{path}[{i}]") for i, part in enumerate(parts))


def _read_part(part: Object, path: str) -> str:
    kind = read_str(part, "type", path)
    if kind is None:
        fail(join(path, "type"), "is required")
    if kind == "input_image":
        fail(path, "this model cannot see: images are not supported")
    key = _TEXT_PARTS.get(kind)
    if key is None:
        fail(path, f"parts of type {kind[:64]!r} are not supported here")
    return as_str(part.get(key), join(path, key))


def _read_arguments(item: Object, path: str) -> str:
    """JSON text of an object; an empty one means no arguments. Unfinished text becomes an argument itself."""
    text = as_str(item.get("arguments"), path)
    if not text.strip():
        return "{}"
    try:
        value = parse_json(text, path, param=path, allows_repeats=True)
    except RequestError:
        if item.get("status") == "incomplete" or not text.rstrip().endswith("}"):
            return msgspec.json.encode({UNFINISHED: text}).decode()
        raise
    if not isinstance(value, dict):
        fail(path, "must be the text of a JSON object")
    return text
