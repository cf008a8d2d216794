"""Where prompts are encoded: long ones on a thread, short ones where they arrive. Knows sizes; never templates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from sparkinfer.request import ChatPrompt, JsonSchemaFormat, Prompt, Request, TextPrompt

MAX_CHARS = 2000
MAX_MESSAGES = 8

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class EncodingThread:
    """Keeps work that takes milliseconds off the event loop; one piece of it at a time, in order."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="encode")

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """On the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def encode(self, request: Request, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """On the thread, unless `request` is so short that waking it, there and back, would take longer."""
        return call(*args) if is_short(request) else await self.run(call, *args)


def is_short(request: Request) -> bool:
    """Whether encoding what a request says holds up the text of others by half a millisecond at most."""
    num_chars = _num_chars(request.prompt)
    if num_chars is None:
        return False
    if isinstance(request.output_format, JsonSchemaFormat):
        num_chars += len(request.output_format.schema)  # the model is shown it
    if request.continuation is not None:
        num_chars += len(request.continuation.text) + len(request.continuation.token_ids)
    return num_chars <= MAX_CHARS


def _num_chars(prompt: Prompt) -> int | None:
    """Characters, or tokens, that a prompt has; None for one with more to it than texts."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    if not isinstance(prompt, ChatPrompt):
        return len(prompt.token_ids)
    if prompt.tools or len(prompt.messages) > MAX_MESSAGES or any(message.tool_calls for message in prompt.messages):
        return None
    if any(isinstance(value, list | dict) for value in prompt.template_kwargs.values()):
        return None
    texts: list[Any] = [*prompt.template_kwargs, *prompt.template_kwargs.values()]
    for message in prompt.messages:
        texts += (message.content, message.reasoning, message.name, message.tool_call_id)
    return sum(len(text) for text in texts if isinstance(text, str))
