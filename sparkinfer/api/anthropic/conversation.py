"""system and messages of the Messages API to the conversation model, with every error located.

Blocks of text in one message are joined by a newline, those of an assistant without anything between, as they were
generated. A tool's results become messages of their own before the rest of their turn. A system message stays where it
stands. Knows no template.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sparkinfer.api.messages import MAX_MESSAGES
from sparkinfer.api.schema import Object, as_list, as_object, as_str, fail, join, read_bool, read_choice, read_str
from sparkinfer.request import Message, ToolCall

# Claude Code opens its system prompt with a line that differs from request to request, so that no prefix would match.
# Its end is that of its fields, and what stands behind them on the line is none of it.
_BILLING_LINE = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\n]*(?:;|(?=\n)|\Z))*[ \t]*\n?")


def read_conversation(body: Object, strip_billing_line: bool) -> tuple[Message, ...]:
    """All messages, the system prompt first."""
    system = _read_system(body.get("system"), strip_billing_line)
    items = as_list(body.get("messages"), "messages")
    if not items:
        fail("messages", "must have at least one message")
    if len(items) > MAX_MESSAGES:
        fail("messages", f"must have at most {MAX_MESSAGES} messages, got {len(items)}")
    turns = _Turns()
    if system:
        turns.messages.append(Message(role="system", content=system))
    last_user = max((i for i, item in enumerate(items) if isinstance(item, dict) and item.get("role") == "user"),
                    default=-1)  # fmt: skip
    for i, item in enumerate(items):
        turns.add(as_object(item, f"messages[{i}]"), f"messages[{i}]", is_past=i < last_user)
    turns.check_end(f"messages[{len(items) - 1}]")
    return tuple(turns.messages)


class _Turns:
    """Grows by one message of the client at a time, and knows which calls wait for their results."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open_calls: dict[str, str] = {}  # id -> name
        self._used_ids: set[str] = set()

    def add(self, message: Object, path: str, *, is_past: bool) -> None:
        """is_past: a user message follows."""
        role = read_choice(message, "role", ("user", "assistant", "system"), path)
        if role is None:
            fail(join(path, "role"), "is required")
        content = message.get("content")
        path = join(path, "content")
        if role == "system":
            if not (is_past and message.get("clear_at") == "next_user_message"):
                self.messages.append(Message(role="system", content=_read_texts(content, path)))
        elif role == "user":
            self._add_user(content, path)
        else:
            self.check_end(path)
            self._add_assistant(content, path)

    def check_end(self, path: str) -> None:
        """Every call has had its result."""
        for call_id in self._open_calls:
            fail(path, f"the tool_use {call_id[:64]!r} has no tool_result in the message behind it")

    def _add_user(self, content: Any, path: str) -> None:
        texts: list[str] = []
        for block, where in _blocks(content, path):
            kind = _kind(block, where)
            if kind == "tool_result":
                self._add_result(block, where)
            else:
                texts.append(_read_text_block(block, kind, where))
        self.check_end(path)
        if texts:
            self.messages.append(Message(role="user", content="\n".join(texts)))

    def _add_result(self, block: Object, path: str) -> None:
        call_id = as_str(block.get("tool_use_id"), join(path, "tool_use_id"))
        name = self._open_calls.pop(call_id, None)
        if name is None:
            fail(join(path, "tool_use_id"), f"no tool_use {call_id[:64]!r} in the message before waits for a result")
        content = block.get("content")
        text = "" if content is None or content == [] else _read_texts(content, join(path, "content"))
        if read_bool(block, "is_error", False, path):
            text = f"Error: {text}"
        self.messages.append(Message(role="tool", content=text, name=name, tool_call_id=call_id))

    def _add_assistant(self, content: Any, path: str) -> None:
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        for block, where in _blocks(content, path, may_be_empty=True):
            kind = _kind(block, where)
            if kind == "thinking":
                reasoning.append(as_str(block.get("thinking"), join(where, "thinking")))
            elif kind == "tool_use":
                calls.append(self._read_call(block, where))
            elif kind != "redacted_thinking":
                texts.append(_read_text_block(block, kind, where))
        self.messages.append(
            Message(
                role="assistant",
                content="".join(texts),
                reasoning="".join(reasoning) or None,
                tool_calls=tuple(calls),
            )
        )

    def _read_call(self, block: Object, path: str) -> ToolCall:
        call_id = as_str(block.get("id"), join(path, "id"))
        name = as_str(block.get("name"), join(path, "name"))
        arguments = as_object(block.get("input"), join(path, "input"))
        if not call_id or not name:
            fail(path, "id and name must not be empty")
        if call_id in self._used_ids:
            fail(join(path, "id"), f"the id {call_id[:64]!r} is used twice")
        self._used_ids.add(call_id)
        self._open_calls[call_id] = name
        return ToolCall(id=call_id, name=name, arguments=msgspec.json.encode(arguments).decode())


def _read_system(value: Any, strip_billing_line: bool) -> str:
    if value is None or value == "" or value == []:
        return ""
    texts = [_read_text_block(block, _kind(block, where), where) for block, where in _blocks(value, "system")]
    if strip_billing_line:
        texts = [_BILLING_LINE.sub("", texts[0], count=1) if _BILLING_LINE.match(texts[0]) else texts[0], *texts[1:]]
    return "\n".join(text for text in texts if text)


def _blocks(value: Any, path: str, *, may_be_empty: bool = False) -> list[tuple[Object, str]]:
    """The blocks of a message with their paths; a string is one block of text."""
    if isinstance(value, str):
        return [({"type": "text", "text": value}, path)]
    items = as_list(value, path)
    if not items and not may_be_empty:
        fail(path, "must have at least one block")
    return [(as_object(item, f"{path}[{i}]"), f"{path}[{i}]") for i, item in enumerate(items)]


def _kind(block: Object, path: str) -> str:
    kind = read_str(block, "type", path)
    if kind is None:
        fail(join(path, "type"), "is required")
    return kind


def _read_texts(value: Any, path: str) -> str:
    return "\n".join(_read_text_block(block, _kind(block, where), where) for block, where in _blocks(value, path))


def _read_text_block(block: Object, kind: str, path: str) -> str:
    if kind == "image":
        fail(path, "this model cannot see: images are not supported")
    if kind != "text":
        fail(path, f"blocks of type {kind[:64]!r} are not supported here")
    return as_str(block.get("text"), join(path, "text"))
