"""OpenAI chat messages to the conversation model, with every structural rule checked and every error located.

Knows no template: whether a model accepts a conversation is decided where it is rendered.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sparkinfer.api.json_body import parse_json
from sparkinfer.api.schema import Object, as_list, as_object, as_str, fail, join, read_str, reject_unknown, type_name
from sparkinfer.request import Message, ToolCall

MAX_MESSAGES = 10_000
MAX_TOOL_CALLS = 128

ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_COMMON_KEYS = frozenset({"role", "content", "name"})
# What SDKs echo back from a response, mostly as null.
_ECHOED_KEYS = frozenset({"refusal", "annotations", "audio", "function_call"})
_ASSISTANT_KEYS = _COMMON_KEYS | _ECHOED_KEYS | {"reasoning", "reasoning_content", "tool_calls"}
_TOOL_KEYS = _COMMON_KEYS | {"tool_call_id"}
_AUDIO_PARTS = frozenset({"input_audio", "audio", "audio_url"})
_PART_KEYS = frozenset({"type", "text", "cache_control"})


def parse_messages(value: Any, path: str = "messages") -> tuple[Message, ...]:
    """The conversation in `value`; at least one message, tool results right behind the calls they answer."""
    items = as_list(value, path)
    if not items:
        fail(path, "must have at least one message")
    if len(items) > MAX_MESSAGES:
        fail(path, f"must have at most {MAX_MESSAGES} messages, got {len(items)}")
    messages = tuple(_parse_message(item, f"{path}[{i}]") for i, item in enumerate(items))
    _check_tool_results(messages, path)
    return messages


def parse_content(value: Any, path: str, *, allow_refusal: bool = False) -> str:
    """A string, or text parts joined without a separator.

    Audio beside text is skipped, as clients that send both expect; other kinds of parts are refused by name.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        fail(path, f"must be a string or an array of parts, not {type_name(value)}")
    if not value:
        fail(path, "must have at least one part")
    texts = [_parse_part(part, f"{path}[{i}]", allow_refusal) for i, part in enumerate(value)]
    if all(text is None for text in texts):
        fail(f"{path}[0]", "audio is not supported by this model; only text is")
    return "".join(text for text in texts if text is not None)


def _parse_message(value: Any, path: str) -> Message:
    message = as_object(value, path)
    name = read_str(message, "role", path)
    if name is None or name not in ROLES:
        fail(join(path, "role"), f"must be one of {', '.join(ROLES)}, got {name and name[:64]!r}")
    role = ROLES[name]
    if role == "assistant":
        return _parse_assistant(message, path)
    present = {key: item for key, item in message.items() if item is not None}
    reject_unknown(present, _TOOL_KEYS if role == "tool" else _COMMON_KEYS, path)
    content = parse_content(message.get("content"), join(path, "content"))
    tool_call_id = read_str(message, "tool_call_id", path)
    if role == "tool" and not tool_call_id:
        fail(join(path, "tool_call_id"), "is required in a tool message")
    return Message(role=role, content=content, name=read_str(message, "name", path), tool_call_id=tool_call_id)


def _parse_assistant(message: Object, path: str) -> Message:
    present = {key: item for key, item in message.items() if item is not None}
    reject_unknown(present, _ASSISTANT_KEYS, path)
    for key in ("audio", "function_call"):
        if message.get(key):
            fail(join(path, key), "is not supported")
    content = message.get("content")
    refusal = read_str(message, "refusal", path)
    tool_calls = _parse_tool_calls(message.get("tool_calls"), join(path, "tool_calls"))
    if content is None and refusal is None and not tool_calls:
        fail(path, "an assistant message needs content or tool_calls")
    reasoning = read_str(message, "reasoning", path)
    return Message(
        role="assistant",
        content=refusal if content is None else parse_content(content, join(path, "content"), allow_refusal=True),
        reasoning=reasoning if reasoning is not None else read_str(message, "reasoning_content", path),
        name=read_str(message, "name", path),
        tool_calls=tool_calls,
    )


def _parse_part(value: Any, path: str, allow_refusal: bool) -> str | None:
    part = as_object(value, path)
    kind = read_str(part, "type", path)
    if kind is None:
        fail(join(path, "type"), "is required")
    if kind == "refusal" and allow_refusal:
        reject_unknown(part, ("type", "refusal"), path)
        return as_str(part.get("refusal"), join(path, "refusal"))
    if kind in _AUDIO_PARTS:
        return None
    if kind != "text":
        fail(path, f"parts of type {kind[:64]!r} are not supported by this model; only text is")
    reject_unknown(part, _PART_KEYS, path)
    return as_str(part.get("text"), join(path, "text"))


def _parse_tool_calls(value: Any, path: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    calls = as_list(value, path)
    if len(calls) > MAX_TOOL_CALLS:
        fail(path, f"must have at most {MAX_TOOL_CALLS} calls, got {len(calls)}")
    return tuple(_parse_tool_call(call, f"{path}[{i}]") for i, call in enumerate(calls))


def _parse_tool_call(value: Any, path: str) -> ToolCall:
    call = as_object(value, path)
    reject_unknown(call, ("id", "type", "function", "index"), path)
    if call.get("type") not in (None, "function"):
        fail(join(path, "type"), "must be 'function'")
    call_id = as_str(call.get("id"), join(path, "id"))
    function_path = join(path, "function")
    function = as_object(call.get("function"), function_path)
    reject_unknown(function, ("name", "arguments"), function_path)
    name = as_str(function.get("name"), join(function_path, "name"))
    if not call_id or not name:
        fail(path, "id and function.name must not be empty")
    return ToolCall(id=call_id, name=name, arguments=_parse_arguments(function, function_path))


def _parse_arguments(function: Object, path: str) -> str:
    """JSON text of an object; an object is written out, and an empty string means no arguments.

    A model may have repeated a key, and what it wrote is sent back as it is.
    """
    path = join(path, "arguments")
    value = function.get("arguments")
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    text = as_str(value, path)
    if not text.strip():
        return "{}"
    if not isinstance(parse_json(text, path, param=path, allows_repeats=True), dict):
        fail(path, "must be a JSON object")
    return text


def _check_tool_results(messages: tuple[Message, ...], path: str) -> None:
    """Each assistant message with calls is followed at once by exactly one result for each of them."""
    open_calls: dict[str, str] = {}
    for i, message in enumerate(messages):
        where = f"{path}[{i}]"
        if message.role == "tool":
            call_id = message.tool_call_id or ""
            name = open_calls.pop(call_id, None)
            if name is None:
                fail(join(where, "tool_call_id"), f"no call {call_id[:64]!r} waits for a result here")
            if message.name is not None and message.name != name:
                fail(join(where, "name"), f"the call was to {name[:64]!r}, not {message.name[:64]!r}")
            continue
        if open_calls:
            fail(where, f"the call {next(iter(open_calls))[:64]!r} has no result before this message")
        for call in message.tool_calls:
            if call.id in open_calls:
                fail(join(where, "tool_calls"), f"the id {call.id[:64]!r} is used twice")
            open_calls[call.id] = call.name
    if open_calls:
        fail(f"{path}[{len(messages) - 1}]", f"the call {next(iter(open_calls))[:64]!r} has no result")
