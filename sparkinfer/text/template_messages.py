"""Messages as Hugging Face chat templates expect them: plain dicts. Knows the shape; never renders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from sparkinfer.request import Message, ToolCall

# Mistral's templates refuse tool call ids of any other length than nine.
_NINE_CHARACTER_IDS = re.compile(r"length\s*!=\s*9")


def template_messages(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """The conversation for the template `source`; absent fields are absent keys, absent content is ""."""
    shorten = _NINE_CHARACTER_IDS.search(source) is not None
    return [_as_dict(message, shorten) for message in messages]


def _as_dict(message: Message, shorten: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = _call_id(message.tool_call_id, shorten)
    if message.tool_calls:
        fields["tool_calls"] = [_call(call, shorten) for call in message.tool_calls]
    return fields


def _call(call: ToolCall, shorten: bool) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"type": "function", "id": _call_id(call.id, shorten), "function": function}


def _arguments(text: str) -> Any:
    """The arguments as a mapping; text that is no JSON object stays text, and the template decides."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _call_id(call_id: str, shorten: bool) -> str:
    if not shorten or re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
