"""Prompts that are encoded at once are short in every respect; the others are encoded on one thread, in order."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sparkinfer.request import (
    ChatPrompt,
    Continuation,
    JsonSchemaFormat,
    Message,
    Prompt,
    RegexFormat,
    Request,
    RequestId,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)
from sparkinfer.sampling_params import SamplingParams
from workers.text_encoding_thread import MAX_CHARS, MAX_MESSAGES, EncodingThread, is_short

HALF = "x" * (MAX_CHARS // 2)
TOOL = Tool(name="f", definition="{}", parameters="{}")
CALL = Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),))


def chat(*contents: str | None, **more) -> ChatPrompt:
    return ChatPrompt(messages=tuple(Message(role="user", content=content) for content in contents), **more)


def request(prompt: Prompt, **more) -> Request:
    return Request(request_id=RequestId(1), prompt=prompt, sampling=SamplingParams(max_tokens=1), **more)


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
        (ChatPrompt(messages=(Message(role="tool", content=HALF, name=HALF, tool_call_id="x"),)), False),
        (chat(HALF, template_kwargs={"enable_thinking": True, "k": HALF[16:]}), True),
        (chat(HALF, template_kwargs={"enable_thinking": True, "k": HALF}), False),
        (chat("x", template_kwargs={"k": [1]}), False),
    ],
)
def test_short(prompt: Prompt, short: bool) -> None:
    assert is_short(request(prompt)) == short


@pytest.mark.parametrize(
    ("more", "short"),
    [
        ({"output_format": JsonSchemaFormat(schema=HALF)}, True),
        ({"output_format": JsonSchemaFormat(schema=HALF + "x")}, False),
        ({"output_format": RegexFormat(HALF * 3)}, True),  # not shown to the model
        ({"continuation": Continuation(text=HALF, max_tokens=1)}, True),
        ({"continuation": Continuation(text=HALF + "x", max_tokens=1)}, False),
        ({"continuation": Continuation(token_ids=(1,) * MAX_CHARS, max_tokens=1)}, False),
    ],
)
def test_what_a_request_says_beside_its_prompt_counts(more: dict[str, Any], short: bool) -> None:
    assert is_short(request(TextPrompt(text=HALF), **more)) == short


def name() -> str:
    return threading.current_thread().name


def test_threads() -> None:
    async def run() -> list[str]:
        thread = EncodingThread()
        requests = [request(TextPrompt(text=text)) for text in ("x", HALF * 3)]
        return [await thread.encode(each, name) for each in requests] + [await thread.run(name)]

    at_once, *on_thread = asyncio.run(run())
    assert at_once == name()
    assert on_thread == ["encode_0", "encode_0"]
