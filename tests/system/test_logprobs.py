"""Logprobs of the real model: streamed and whole answers say the same, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.system.harness import Server

MESSAGES = [{"role": "user", "content": "Write one line about the 🌧️ in Málaga."}]
CASES: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 24},
    {"temperature": 1.3, "seed": 7, "max_tokens": 32, "n": 2},
    {"temperature": 0, "max_tokens": 40, "stop": [" the", "\n\n"]},
    {"temperature": 1.0, "seed": 3, "max_tokens": 24, "presence_penalty": 1.5, "logit_bias": {"28": -50}},
]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.mark.parametrize("case", CASES)
def test_streamed_entries_joined_are_the_whole_array(client: openai.OpenAI, case: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 3, **case}
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(stream=True, **arguments))
    for choice in whole.choices:
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        entries = [entry for c in own if c.logprobs for entry in c.logprobs.content]
        assert "".join(c.delta.content or "" for c in own) == choice.message.content
        assert [e.model_dump() for e in entries] == [e.model_dump() for e in choice.logprobs.content]
        for c in own:
            if c.logprobs and c.delta.content and "stop" not in case:
                data = bytes(b for e in c.logprobs.content for b in e.bytes)
                assert c.delta.content.encode()[-1:] == data[-1:]
        for entry in entries:
            if case["temperature"] == 0:
                assert entry.logprob == entry.top_logprobs[0].logprob
            assert entry.logprob <= 0
            assert len(entry.top_logprobs) == 3


def test_our_message_can_be_sent_back(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=8).choices[0].message
    for returned in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        history = [*MESSAGES, returned, {"role": "user", "content": "Shorter."}]
        assert client.chat.completions.create(model="m", messages=history, max_tokens=2).usage.completion_tokens == 2
