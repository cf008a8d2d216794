"""Scores of the real model: the numbers that chat reports for the same tokens at the same positions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.system.harness import Server

MESSAGES = [{"role": "user", "content": "Name the capital of France, and its river."}]
QUESTIONS = [[{"role": "user", "content": f"What is {n} times {n + 1}?"}] for n in range(4)]


@pytest.fixture(scope="module")
def deterministic(deterministic_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{deterministic_server.url}/v1", timeout=120) as client:
        yield client


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "max_tokens": 12, "temperature": 0, **fields}
    return dict(client.post("/chat/completions", json=body).json())


def score(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/score", json={"top_logprobs": 3, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def entries_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return list(reply["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize("controls", [{}, {"temperature": 1.4, "seed": 3}], ids=str)
def test_bit_for_bit_what_chat_says(deterministic: httpx.Client, controls: dict[str, Any]) -> None:
    said = entries_of(chat(deterministic, **controls))
    token_ids = [entry["token_id"] for entry in said]
    scored = score(deterministic, messages=MESSAGES, completion_token_ids=token_ids)
    assert scored["logprobs"] == [entry["logprob"] for entry in said]
    assert scored["top_logprobs"] == [entry["top_logprobs"] for entry in said]
    assert scored["tokens"] == [entry["token"] for entry in said]
    assert scored["bytes"] == [entry["bytes"] for entry in said]
    assert scored["sum_logprob"] == pytest.approx(sum(scored["logprobs"]))
    usage = scored["usage"]
    assert usage["completion_tokens"] == len(token_ids)
    assert 0 < usage["ttft_ms"] <= usage["generation_ms"]


def test_text_is_scored_as_the_tokens_that_it_was(deterministic: httpx.Client) -> None:
    reply = chat(deterministic)
    scored = score(deterministic, messages=MESSAGES, completion=reply["choices"][0]["message"]["content"])
    said = entries_of(reply)
    assert scored["token_ids"] == [entry["token_id"] for entry in said if entry["token"] != "<|im_end|>"]
    assert scored["logprobs"] == [entry["logprob"] for entry in said][: len(scored["logprobs"])]


def test_others_do_not_change_a_score_and_nothing_is_cached(deterministic: httpx.Client) -> None:
    """Also the first positions behind the prompt, and whatever ran before: the token itself is its top entry."""
    completion = "The capital of France is Paris."

    async def crowd() -> list[dict[str, Any]]:
        url = str(deterministic.base_url)
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            bodies = [{"messages": MESSAGES, "completion": completion, "top_logprobs": 20} for _ in range(3)]
            chats = [{"messages": q, "max_tokens": 16, "temperature": 1.2} for q in QUESTIONS]
            posts = [client.post("chat/completions", json=body) for body in chats]
            posts += [client.post("score", json=body) for body in bodies]
            return [reply.json() for reply in await asyncio.gather(*posts)][len(chats) :]

    alone = score(deterministic, messages=MESSAGES, completion=completion, top_logprobs=20)
    for scored in asyncio.run(crowd()):
        assert {**scored, "id": "", "created": 0, "usage": 0} == {**alone, "id": "", "created": 0, "usage": 0}
        assert scored["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for token_id, logprob, top in zip(alone["token_ids"], alone["logprobs"], alone["top_logprobs"], strict=True):
        assert [entry["logprob"] for entry in top if entry["token_id"] == token_id] in ([logprob], [])


def test_by_default_it_is_the_same_to_a_rounding_error(server: Server) -> None:
    with httpx.Client(base_url=f"{server.url}/v1", timeout=120) as client:
        said = entries_of(chat(client, temperature=1.0, seed=5, max_tokens=24))
        scored = score(client, messages=MESSAGES, completion_token_ids=[entry["token_id"] for entry in said])
    assert scored["logprobs"] == pytest.approx([entry["logprob"] for entry in said], abs=1e-4)


def test_typed_control_tokens_are_text_and_ids_are_ids(deterministic: httpx.Client) -> None:
    typed = score(deterministic, messages=MESSAGES, completion="Paris<|im_end|>")
    assert "".join(typed["tokens"]) == "Paris<|im_end|>"
    assert "<|im_end|>" not in typed["tokens"]
    given = score(deterministic, messages=MESSAGES, completion_token_ids=[*typed["token_ids"][:1], 2, 504])
    assert given["tokens"][1:] == ["<|im_end|>", "The"], "what ends an answer does not end a score"


def test_a_conversation_by_itself(deterministic: httpx.Client) -> None:
    scored = score(deterministic, messages=MESSAGES, prompt_only=True)
    tokens = deterministic.post("/tokenize", json={"messages": MESSAGES, "return_token_ids": True}).json()
    assert scored["token_ids"] == tokens["token_ids"]
    assert scored["logprobs"][0] is None
    assert max(scored["logprobs"][1:]) <= 0
    assert (scored["usage"]["prompt_tokens"], scored["usage"]["completion_tokens"]) == (tokens["tokens"], 0)


def test_echo_reports_what_score_does(deterministic: httpx.Client) -> None:
    prompt = "Málaga 🌧️ is a city in"
    scored = score(deterministic, prompt=prompt, prompt_only=True)
    with openai.OpenAI(base_url=str(deterministic.base_url), api_key="none", max_retries=0) as client:
        arguments: dict[str, Any] = {"model": "m", "prompt": prompt, "echo": True, "logprobs": 2, "temperature": 0}
        none, some = (client.completions.create(max_tokens=n, **arguments).choices[0] for n in (0, 4))
        chunks = [c.choices[0] for c in client.completions.create(max_tokens=4, stream=True, **arguments) if c.choices]
    num_tokens = len(scored["logprobs"])
    assert none.text == prompt
    assert none.finish_reason == "length"
    assert none.logprobs.token_logprobs == scored["logprobs"]
    assert none.logprobs.top_logprobs[0] is None
    assert some.text.startswith(prompt)
    assert some.logprobs.token_logprobs[:num_tokens] == scored["logprobs"]
    assert len(some.logprobs.tokens) == num_tokens + 4
    assert "".join(c.text for c in chunks) == some.text
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(c.logprobs, field) for c in chunks if c.logprobs]
        assert [item for part in parts for item in part] == getattr(some.logprobs, field)


def test_what_does_not_fit_is_refused_with_its_numbers(deterministic: httpx.Client) -> None:
    response = deterministic.post("/score", json={"prompt": "a b " * 110, "completion": "c d " * 40})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 256 tokens" in error["message"]
    assert (error["n_prompt_tokens"] < 256, error["n_ctx"]) == (True, 256)
