"""The real HTTP application over a scripted model, which calls the first tool it knows how to, once a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparkinfer.request import ChatPrompt, JsonSchemaFormat, Request
from tests.api.scripts import says

MARK = "a-mark-that-only-the-tool-says"
CALLS = {
    "get_weather": '{"city": "Paris"}',
    "Bash": f'{{"command": "echo {MARK}", "description": "Say it"}}',
    "exec_command": f'{{"cmd": "echo {MARK}"}}',
    "shell_command": f'{{"command": "echo {MARK}"}}',
    "shell": f'{{"command": ["echo", "{MARK}"]}}',
}


def told_to_call(name: str) -> str:
    """A prompt that makes the scripted runner call the tool, and then end."""
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {CALLS[name]}}}\n</tool_call>'
    return f"<<say>>{call}<</say>><<say>>That was all.<</say>>"


def call_once(request: Request) -> Iterable[list[Any]]:
    """Reason, speak and call; or, once there are results, repeat the last of them."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return says(("content", " three"))(request)
    results = [message.content or "" for message in prompt.messages if message.role == "tool"]
    if results:
        return says(("reasoning", "It answered."), ("content", f"The tool said: {results[-1]}"), piece=7)(request)
    if isinstance(request.output_format, JsonSchemaFormat):
        return says(("content", '{"color": "red"}'))(request)
    names = [tool.name for tool in prompt.tools]
    if request.tool_policy.choice != "none":
        for name, arguments in CALLS.items():
            if name in names:
                call = ("call", f"call_{request.request_id:024x}", name, arguments)
                return says(("reasoning", "I need a tool."), ("content", "Let me see."), call, piece=5)(request)
    return says(("reasoning", "Easy."), ("content", "Hello there."), piece=4)(request)
