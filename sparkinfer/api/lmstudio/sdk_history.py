"""A conversation as LM Studio's SDKs send it to the conversation model.

Messages of one role each, made of parts: text, requests for tool calls, their results, files. Knows no template.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparkinfer.api.messages import MAX_MESSAGES
from sparkinfer.api.schema import Object, as_list, as_object, as_str, fail, join, read_choice, read_object, read_str
from sparkinfer.request import Message, ToolCall

_ROLES = ("system", "user", "assistant", "tool")


class History:
    """Grows by one message at a time."""

    def __init__(self, reasoning_tags: tuple[str, str]) -> None:
        """reasoning_tags: around the reasoning in front of an earlier answer."""
        self.messages: list[Message] = []
        self._tags = reasoning_tags
        self._open_calls: dict[str, str] = {}  # id -> name

    def add(self, message: Object, path: str) -> None:
        """The next message."""
        role = read_choice(message, "role", _ROLES, path)
        content = message.get("content")
        where = join(path, "content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content, where)
        if role == "tool":
            self._add_results(parts, where)
            return
        if self._open_calls:
            fail(path, f"the call {next(iter(self._open_calls))[:64]!r} has no result before this message")
        if role == "assistant":
            self._add_answer(parts, where)
        elif role is not None:
            text = _text(parts, where)
            self.messages.append(Message(role="system" if role == "system" else "user", content=text))
        else:
            fail(join(path, "role"), "is required")

    def finish(self, path: str) -> tuple[Message, ...]:
        """All messages."""
        if not self.messages:
            fail(path, "must have at least one message")
        if self._open_calls:
            fail(path, f"the call {next(iter(self._open_calls))[:64]!r} has no result")
        return tuple(self.messages)

    def _add_answer(self, parts: list[Any], path: str) -> None:
        texts: list[Any] = []
        calls: list[ToolCall] = []
        for i, item in enumerate(parts):
            part = as_object(item, f"{path}[{i}]")
            if part.get("type") == "toolCallRequest":
                calls.append(self._read_call(part, f"{path}[{i}]"))
            else:
                texts.append(part)
        reasoning, content = self._split(_text(texts, path))
        if content or calls:
            self.messages.append(
                Message(role="assistant", content=content, reasoning=reasoning or None, tool_calls=tuple(calls))
            )

    def _read_call(self, part: Object, path: str) -> ToolCall:
        where = join(path, "toolCallRequest")
        request = as_object(part.get("toolCallRequest"), where)
        name = as_str(request.get("name"), join(where, "name"))
        if not name:
            fail(join(where, "name"), "must not be empty")
        call_id = read_str(request, "id", where) or f"call_{len(self.messages)}_{len(self._open_calls)}"
        if call_id in self._open_calls:
            fail(join(where, "id"), f"the id {call_id[:64]!r} is used twice")
        self._open_calls[call_id] = name
        arguments = read_object(request, "arguments", where) or {}
        return ToolCall(id=call_id, name=name, arguments=msgspec.json.encode(arguments).decode())

    def _add_results(self, parts: list[Any], path: str) -> None:
        """Results without an id answer the calls in their order."""
        for i, item in enumerate(parts):
            where = f"{path}[{i}]"
            part = as_object(item, where)
            if part.get("type") != "toolCallResult":
                fail(join(where, "type"), "must be 'toolCallResult' in a tool message")
            call_id = read_str(part, "toolCallId", where) or next(iter(self._open_calls), "")
            name = self._open_calls.pop(call_id, None)
            if name is None:
                fail(join(where, "toolCallId"), f"no call {call_id[:64]!r} waits for a result here")
            content = as_str(part.get("content"), join(where, "content"))
            self.messages.append(Message(role="tool", content=content, name=name, tool_call_id=call_id))

    def _split(self, text: str) -> tuple[str, str]:
        """(reasoning, content) of an earlier answer."""
        start, end = self._tags
        stripped = text.lstrip()
        if not stripped.startswith(start) or end not in stripped:
            return "", text
        reasoning, _, content = stripped.removeprefix(start).partition(end)
        return reasoning, content


def read_messages(history: Object, path: str, reasoning_tags: tuple[str, str]) -> tuple[Message, ...]:
    """The conversation in {"messages": [...]} at `path`; RequestError names the part that is wrong."""
    conversation = History(reasoning_tags)
    items = as_list(history.get("messages"), join(path, "messages"))
    if len(items) > MAX_MESSAGES:
        fail(join(path, "messages"), f"must have at most {MAX_MESSAGES} messages, got {len(items)}")
    for i, item in enumerate(items):
        where = f"{path}.messages[{i}]"
        conversation.add(as_object(item, where), where)
    return conversation.finish(join(path, "messages"))


def _text(parts: list[Any], path: str) -> str:
    texts = []
    for i, item in enumerate(parts):
        where = f"{path}[{i}]"
        part = as_object(item, where)
        kind = read_str(part, "type", where)
        if kind == "file":
            fail(where, "this model cannot see: images and other files are not supported")
        if kind != "text":
            fail(join(where, "type"), f"must be 'text', got {kind and kind[:64]!r}")
        texts.append(as_str(part.get("text"), join(where, "text")))
    return "".join(texts)
