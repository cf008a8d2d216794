"""What a conversation says to the model beyond its messages: which functions there are, and what is expected of it.

Knows the wishes of a request; the template knows how to write them down, or generic_tools.py does.
"""

from __future__ import annotations

import json

import msgspec

from sparkinfer.request import (
    ChatPrompt,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    OutputFormat,
    Tool,
    ToolPolicy,
)
from sparkinfer.text.tool_protocols.generic_tools import described_tools, plain_messages
from sparkinfer.text.tool_protocols.protocol import ToolDialect, ToolProtocol


def instructed(
    prompt: ChatPrompt, policy: ToolPolicy, output_format: OutputFormat | None, dialect: ToolDialect
) -> ChatPrompt:
    """The prompt with everything that the template has to be told in its messages.

    Functions that may not be called are not shown. What must be done is said in the system turn, behind its own text,
    where the start of the conversation stays as it was.
    """
    tools = () if policy.choice == "none" else prompt.tools
    messages = list(prompt.messages)
    texts = []
    if not dialect.is_native:
        messages = plain_messages(messages, dialect.protocol)
        if tools:
            texts.append(described_tools(tools, dialect.protocol))
    texts += _wishes(policy if tools else None, output_format)
    if texts:
        messages = _with_system_text(messages, "\n\n".join(texts))
    shown = tuple(_for_template(tool, dialect) for tool in tools) if dialect.is_native else ()
    return msgspec.structs.replace(prompt, messages=tuple(messages), tools=shown)


def _wishes(policy: ToolPolicy | None, output_format: OutputFormat | None) -> list[str]:
    wishes = []
    if policy is not None:
        names = ", ".join(policy.allowed)
        if policy.choice == "required":
            wishes.append(f"You MUST call a function now{f': {names}' if names else ''}.")
        elif names:
            wishes.append(f"Call no other functions than these: {names}.")
        if not policy.parallel:
            wishes.append("Call at most one function.")
        if policy.choice == "required":
            return wishes
    condition = "If you call no function, answer" if policy is not None else "Answer"
    if isinstance(output_format, JsonObjectFormat):
        wishes.append(f"{condition} with a JSON object and nothing else.")
    elif isinstance(output_format, JsonSchemaFormat):
        wishes.append(f"{condition} with JSON that follows this schema, and nothing else:\n{output_format.schema}")
    return wishes


def _with_system_text(messages: list[Message], text: str) -> list[Message]:
    """`text` behind the first system message, or as one."""
    if not messages or messages[0].role != "system":
        return [Message(role="system", content=text), *messages]
    first = messages[0]
    content = f"{first.content}\n\n{text}" if first.content else text
    return [msgspec.structs.replace(first, content=content), *messages[1:]]


def _for_template(tool: Tool, dialect: ToolDialect) -> Tool:
    """The tool as the template takes it: Muse Glimmer's takes none without a description and parameters."""
    if dialect.protocol is not ToolProtocol.MUSE:
        return tool
    definition = json.loads(tool.definition)
    definition["function"] = {"description": "", "parameters": json.loads(tool.parameters)} | definition["function"]
    return msgspec.structs.replace(tool, definition=json.dumps(definition, ensure_ascii=False))
