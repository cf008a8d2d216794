"""Where prompts are encoded: long ones on a thread, short ones where they arrive. Knows sizes; never templates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from sparkinfer.request import ChatPrompt, Prompt, TextPrompt

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

    async def encode(self, prompt: Prompt, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """On the thread, unless `prompt` is so short that waking it, there and back, would take longer."""
        return call(*args) if is_short(prompt) else await self.run(call, *args)


def is_short(prompt: Prompt) -> bool:
    """Whether encoding a prompt holds up the text of others by half a millisecond at most."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text) <= MAX_CHARS
    if not isinstance(prompt, ChatPrompt):
        return len(prompt.token_ids) <= MAX_CHARS
    if prompt.tools or len(prompt.messages) > MAX_MESSAGES or any(message.tool_calls for message in prompt.messages):
        return False
    return sum(len(message.content or "") + len(message.reasoning or "") for message in prompt.messages) <= MAX_CHARS
