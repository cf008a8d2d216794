"""Ollama's messages and tools to the conversation model.

Calls need no ids there: a result belongs to the oldest call of its tool's name that waits for one, else to the oldest.
Knows no template.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.api.function_tool import check_unique, function_tool
from sparkinfer.api.messages import MAX_MESSAGES, ROLES
from sparkinfer.api.schema import Object, as_list, as_object, as_str, fail, join, read_list, read_object, read_str
from sparkinfer.request import Message, Tool, ToolCall


def read_messages(value: Any) -> tuple[Message, ...]:
    """The conversation; at least one message."""
    items = as_list(value, "messages")
    if not 0 < len(items) <= MAX_MESSAGES:
        fail("messages", f"must have 1 to {MAX_MESSAGES} messages, got {len(items)}")
    reader = _Reader()
    return tuple(reader.read(as_object(item, f"messages[{i}]"), f"messages[{i}]") for i, item in enumerate(items))


def read_tools(body: Object) -> tuple[Tool, ...]:
    """`tools`, functions all of them."""
    tools = []
    for i, value in enumerate(read_list(body, "tools") or []):
        path = f"tools[{i}]"
        tool = as_object(value, path)
        if tool.get("type") not in (None, "function"):
            fail(join(path, "type"), "must be 'function'")
        where = join(path, "function")
        function = as_object(tool.get("function"), where)
        name = as_str(function.get("name"), join(where, "name"))
        description = read_str(function, "description", where) or ""
        tools.append(function_tool(name, description, read_object(function, "parameters", where), where))
    return check_unique(tools, "tools")


def refuse_images(obj: Object, path: str) -> None:
    """The model cannot see."""
    if read_list(obj, "images", path):
        fail(join(path, "images"), "this model cannot see: images are not supported")


class _Reader:
    """Reads one message after the other, and knows which calls wait for their results."""

    def __init__(self) -> None:
        self._open: list[ToolCall] = []
        self._num_calls = 0

    def read(self, message: Object, path: str) -> Message:
        role = read_str(message, "role", path)
        if role is None or role not in ROLES:
            fail(join(path, "role"), f"must be one of {', '.join(ROLES)}, got {role and role[:64]!r}")
        refuse_images(message, path)
        content = read_str(message, "content", path) or ""
        if ROLES[role] == "tool":
            return self._result(message, content, path)
        if ROLES[role] != "assistant":
            return Message(role=ROLES[role], content=content)
        calls = self._calls(message, join(path, "tool_calls"))
        self._open = list(calls)
        return Message(
            role="assistant", content=content, reasoning=read_str(message, "thinking", path) or None, tool_calls=calls
        )

    def _result(self, message: Object, content: str, path: str) -> Message:
        call_id = read_str(message, "tool_call_id", path)
        name = read_str(message, "tool_name", path) or read_str(message, "name", path)
        matches = [call for call in self._open if call.id == call_id] if call_id else []
        matches = matches or [call for call in self._open if call.name == name] or self._open
        if not matches:
            return Message(role="tool", content=content, name=name, tool_call_id=call_id or "call_0")
        call = matches[0]
        self._open.remove(call)
        return Message(role="tool", content=content, name=call.name, tool_call_id=call.id)

    def _calls(self, message: Object, path: str) -> tuple[ToolCall, ...]:
        calls = []
        for i, value in enumerate(read_list({"calls": message.get("tool_calls")}, "calls") or []):
            where = f"{path}[{i}]"
            call = as_object(value, where)
            function = as_object(call.get("function"), join(where, "function"))
            name = as_str(function.get("name"), f"{where}.function.name")
            if not name:
                fail(f"{where}.function.name", "must not be empty")
            arguments = as_object(function.get("arguments") or {}, f"{where}.function.arguments")
            self._num_calls += 1
            call_id = read_str(call, "id", where) or f"call_{self._num_calls}"
            calls.append(ToolCall(id=call_id, name=name, arguments=msgspec.json.encode(arguments).decode()))
        return tuple(calls)
