"""Prompts that are encoded at once are short in every respect; the others are encoded on one thread, in order."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sparkinfer.request import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt, Tool, ToolCall
from workers.text_encoding_thread import MAX_CHARS, MAX_MESSAGES, EncodingThread, is_short

HALF = "x" * (MAX_CHARS // 2)
TOOL = Tool(name="f", definition="{}", parameters="{}")
CALL = Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),))


def chat(*contents: str | None, **more) -> ChatPrompt:
    return ChatPrompt(messages=tuple(Message(role="user", content=content) for content in contents), **more)


@pytest.mark.parametrize(
    ("prompt", "short"),
    [
        (TextPrompt(text=HALF * 2), True),
        (TextPrompt(text=HALF * 2 + "x"), False),
        (TokenPrompt(token_ids=(1,) * MAX_CHARS), True),
        (TokenPrompt(token_ids=(1,) * (MAX_CHARS + 1)), False),
        (chat(HALF, None, HALF), True),
        (chat(HALF, HALF, "x"), False),
        (chat(*["x"] * MAX_MESSAGES), True),
        (chat(*["x"] * (MAX_MESSAGES + 1)), False),
        (chat("x", tools=(TOOL,)), False),
        (ChatPrompt(messages=(Message(role="assistant", reasoning=HALF * 2 + "x"),)), False),
        (ChatPrompt(messages=(CALL,)), False),
    ],
)
def test_short(prompt: Prompt, short: bool) -> None:
    assert is_short(prompt) == short


def name() -> str:
    return threading.current_thread().name


def test_threads() -> None:
    async def run() -> list[str]:
        thread = EncodingThread()
        return [await thread.encode(TextPrompt(text=text), name) for text in ("x", HALF * 3)] + [await thread.run(name)]

    at_once, *on_thread = asyncio.run(run())
    assert at_once == name()
    assert on_thread == ["encode_0", "encode_0"]
