"""Requests at the edge of what can be served, on the whole service: refused in time, or answered like any other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.system.harness import Server

USER = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def scripted(scripted_server: Server) -> Iterator[httpx.Client]:
    """A context of 2,048 tokens."""
    with httpx.Client(base_url=f"{scripted_server.url}/v1", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def real(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v1", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def deterministic(deterministic_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{deterministic_server.url}/v1", timeout=120) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_tokens", [2048, 2049, 3000])
def test_a_prompt_one_token_too_long_is_refused_with_its_numbers(
    scripted: httpx.Client, num_tokens: int, stream: bool
) -> None:
    bodies = [{"prompt": [504] * num_tokens}, {"messages": [{"role": "user", "content": " word" * num_tokens}]}]
    for path, body in zip(("/completions", "/chat/completions"), bodies, strict=True):
        response = scripted.post(path, json=body | {"stream": stream})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["message"].startswith("This model's maximum context length is 2048 tokens. However, you requested")
        assert (error["n_prompt_tokens"] >= 2048, error["n_ctx"]) == (True, 2048)


@pytest.mark.parametrize(("num_words", "is_counted"), [(2100, True), (400_000, False)])
def test_what_is_too_long_uncounted_is_said_to_be_that_long_or_longer(
    scripted: httpx.Client, num_words: int, is_counted: bool
) -> None:
    error = scripted.post("/completions", json={"prompt": " word" * num_words}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].endswith("that many tokens or more.") != is_counted


def test_an_answer_that_would_not_fit_is_shortened(scripted: httpx.Client) -> None:
    body = {"prompt": [504] * 2040, "max_tokens": 2**31 - 1, "ignore_eos": True}
    reply = scripted.post("/completions", json=body).json()
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "controls",
    [{"top_k": 1}, {"top_p": 0.01, "temperature": 2}, {"logit_bias": {str(i): -100 for i in range(1000)}},
     {"logit_bias": {"504": 100}}, {"min_p": 1, "temperature": 1.5}],
    ids=["top_k", "top_p", "many biases", "a bias", "min_p"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_finite_whatever_the_controls(real: httpx.Client, controls: dict[str, Any], stream: bool) -> None:
    body = {"messages": USER, "max_tokens": 4, "logprobs": True, "top_logprobs": 20, "stream": stream, **controls}
    response = real.post("/chat/completions", json=body)
    assert response.status_code == 200

    def refuse(name: str) -> None:
        raise AssertionError(name)

    texts = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")] or [response.text]
    for text in texts:
        document = json.loads(text, parse_constant=refuse)
        for choice in document["choices"]:
            for entry in (choice["logprobs"] or {"content": []})["content"]:
                assert -9999 <= entry["logprob"] <= 0
                assert len(entry["top_logprobs"]) == 20


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '"nan"'])
def test_numbers_that_are_none_never_reach_the_engine(real: httpx.Client, number: str) -> None:
    for field in ("temperature", "top_p", "presence_penalty", "max_tokens"):
        body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "{field}": {number}}}'
        response = real.post("/chat/completions", content=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"]


def test_there_are_no_embeddings_and_nothing_pretends(scripted: httpx.Client) -> None:
    for encoding in ("base64", "float", "int8", None):
        response = scripted.post("/embeddings", json={"input": "x", "model": "m", "encoding_format": encoding})
        assert response.status_code == 501
        assert response.json()["error"]["message"]


async def _stream(client: httpx.AsyncClient, seed: int) -> int:
    """Tokens of one streamed answer."""
    body = {"prompt": [504 + seed, 505], "max_tokens": 300, "ignore_eos": True, "stream": True}
    response = await client.post("completions", json=body)
    *_, usage, done = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert done == "data: [DONE]"
    return int(json.loads(usage[6:])["usage"]["completion_tokens"])


def test_megabytes_of_prompt_beside_streams(scripted_server: Server) -> None:
    """Text, ids and JSON of a size that takes a while: refused, and nobody else's answer suffers."""

    async def run() -> tuple[list[int], list[int]]:
        async with httpx.AsyncClient(base_url=f"{scripted_server.url}/v1/", timeout=60) as client:
            streams = [asyncio.create_task(_stream(client, seed)) for seed in range(8)]
            text = "lorem ipsum " * (2 << 20 >> 3)
            bodies: list[tuple[str, dict[str, Any]]] = [
                ("completions", {"prompt": text}),
                ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
                ("completions", {"prompt": [1] * 400_000}), ("score", {"prompt": "a", "completion": text}),
                ("chat/completions", {"messages": USER * 9000}),
            ]  # fmt: skip
            replies = await asyncio.gather(*(client.post(path, json=body) for path, body in bodies))
            return [reply.status_code for reply in replies], list(await asyncio.gather(*streams))

    statuses, counts = asyncio.run(run())
    assert statuses == [400] * 5
    assert counts == [300] * 8
    assert scripted_server.capacity()["active_requests"] == 0


def test_neighbours_change_nothing(deterministic: httpx.Client) -> None:
    """A greedy request and a seeded one, alone and among sixteen others, some of them copies."""
    wanted = [
        {"messages": USER, "max_tokens": 8, "temperature": 0, "logprobs": True},
        {"messages": USER, "max_tokens": 8, "temperature": 1.1, "seed": 5, "logprobs": True},
    ]
    crowd = [{"messages": [{"role": "user", "content": f"Say {n}"}], "max_tokens": 8, "seed": n} for n in range(8)]

    def said(reply: dict[str, Any]) -> Any:
        return reply["choices"][0]["message"]["content"], reply["choices"][0]["logprobs"]

    alone = [said(deterministic.post("/chat/completions", json=body).json()) for body in wanted]

    async def run() -> list[Any]:
        async with httpx.AsyncClient(base_url=deterministic.base_url, timeout=120) as client:
            bodies = [*wanted, *crowd, *wanted, *wanted, *wanted]
            replies = await asyncio.gather(*(client.post("chat/completions", json=body) for body in bodies))
            return [said(reply.json()) for body, reply in zip(bodies, replies, strict=True) if body in wanted]

    assert asyncio.run(run()) == alone * 4
