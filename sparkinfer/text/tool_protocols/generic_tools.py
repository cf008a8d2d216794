"""Tools, calls and results in words of our own, for templates that know none, or know them in a form we cannot read.

Everything becomes text of system, user and assistant messages, which every template can render: tools are described in
the system turn, a call stands at the end of the assistant turn that made it, results are a user turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from sparkinfer.request import Message, Tool, ToolCall
from sparkinfer.text.tool_protocols.markup import QWEN_TAGS
from sparkinfer.text.tool_protocols.protocol import ToolProtocol

_SHAPES = {
    ToolProtocol.HERMES: '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>',
    ToolProtocol.QWEN_XML: "<tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nVALUE\n</parameter>\n</function>\n"
                           "</tool_call>",
}  # fmt: skip


def described_tools(tools: Sequence[Tool], protocol: ToolProtocol) -> str:
    """What the system turn says about `tools`."""
    listed = "\n".join(tool.definition for tool in tools)
    return (
        "You can call functions. Each line between the tags describes one, with a JSON schema of its arguments:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call one, write this and nothing behind it; to call several, write it once for each:\n"
        f"{_SHAPES[protocol]}\n\n"
        "What a function returns comes back as <tool_response>."
    )


def plain_messages(messages: Sequence[Message], protocol: ToolProtocol) -> list[Message]:
    """The conversation without calls and tool messages: their text is in those that are left."""
    plain: list[Message] = []
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(f"<tool_response>\n{message.content or ''}\n</tool_response>")
            continue
        if results and message.role == "user":  # one turn: many templates want user and assistant by turns
            message = msgspec.structs.replace(message, content="\n".join(results) + f"\n\n{message.content}")
        elif results:
            plain.append(Message(role="user", content="\n".join(results)))
        results = []
        if message.tool_calls:
            calls = [_written(call, protocol) for call in message.tool_calls]
            content = "\n".join([message.content, *calls] if message.content else calls)
            message = msgspec.structs.replace(message, content=content, tool_calls=())
        plain.append(message)
    if results:
        plain.append(Message(role="user", content="\n".join(results)))
    return plain


def _written(call: ToolCall, protocol: ToolProtocol) -> str:
    """The call as the model would have written it."""
    if protocol is ToolProtocol.HERMES:
        return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
    tags = QWEN_TAGS
    arguments = "".join(
        f"{tags.key}{name}{tags.tail}\n{_raw(value)}\n{tags.end}\n"
        for name, value in json.loads(call.arguments).items()
    )
    return f"{tags.open}\n{tags.head}{call.name}{tags.tail}\n{arguments}{tags.foot}\n{tags.close}"


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
