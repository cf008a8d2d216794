"""Short ways to write conversations down, and the templates that the tests render them with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkinfer.request import ChatPrompt, Message, Tool, ToolCall

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
NAMES = ("chatml_strict", "alternating", "features")

SEARCH_DEFINITION = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find – <b>&'\"</b> 日本",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
    },
}


def tool_of(definition: dict[str, Any]) -> Tool:
    return Tool(name=definition["function"]["name"], definition=json.dumps(definition))


SEARCH = tool_of(SEARCH_DEFINITION)


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def chat(*messages: Message, **options: Any) -> ChatPrompt:
    return ChatPrompt(messages=messages, **options)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str | None, **fields: Any) -> Message:
    return Message(role="assistant", content=text, **fields)


def tool(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="call_1")


def call(name: str = "search", arguments: str = '{"q": "a<b & \\"c\\"", "n": 3}') -> ToolCall:
    return ToolCall(id="call_1", name=name, arguments=arguments)


def from_openai(messages: list[dict[str, Any]], **options: Any) -> ChatPrompt:
    renamed = [
        Message(role=m["role"], content=m["content"], reasoning=m.get("reasoning_content")) for m in messages
    ]
    return chat(*renamed, **options)
