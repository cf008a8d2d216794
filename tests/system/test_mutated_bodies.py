"""Thousands of bodies, each a real one with something wrong or odd in it: never a 5xx, never silence.

SPARKINFER_MUTANTS=20000 runs that many.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sparkinfer.api.openapi import OPERATIONS, openapi_document
from tests.openapi_schemas import Schemas
from tests.system.harness import SCRIPTED, Server

NUM_MUTANTS = int(os.environ.get("SPARKINFER_MUTANTS", "1500"))
CONCURRENCY = 16
SCHEMAS = Schemas(openapi_document("1", "", has_keys=False))
ROUTES = {operation.path: operation for operation in OPERATIONS if operation.method == "post"}

CHAT: dict[str, Any] = {
    "model": "m", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "n": 2, "max_tokens": 4,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "héllo"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        {"role": "assistant", "content": "two"}, {"role": "user", "content": "go on", "name": "bob"},
    ],
    "stop": ["x", "yz"], "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1,
    "logit_bias": {"5": -10}, "logprobs": True, "top_logprobs": 2, "stream": False,
    "stream_options": {"include_usage": True}, "reasoning_effort": "low", "reasoning": {"enabled": False},
    "chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": False, "stop_token_ids": [1, 2],
    "response_format": {"type": "text"}, "user": "u", "metadata": {"a": "b"}, "tool_choice": "none",
    "priority": 1, "ignore_eos": True, "max_completion_tokens": 3, "add_generation_prompt": True,
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["x"], "$defs": {"t": {"enum": ["a", None, 2]}}, "additionalProperties": False,
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 9},
        "s": {"type": "string", "pattern": "^a+$", "maxLength": 5},
        "t": {"$ref": "#/$defs/t"}, "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "l": {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "minItems": 1, "uniqueItems": True},
    },
}
TOOLS: dict[str, Any] = {
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}},
        {"type": "function", "function": {"name": "g"}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "g"}}, "parallel_tool_calls": False, "ignore_eos": False,
}
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
    {"response_format": None, "structured_outputs": {"regex": "[a-c]{2}|x"}}, {"guided_choice": ["yes", "no"]},
    {"guided_grammar": 'start: "a" | "b" start'}, {"guided_json": {"type": "object"}},
]
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHAT, CHAT | {"stream": True}, CHAT | TOOLS, CHAT | TOOLS | FORMS[0] | {"stream": True},
        *(CHAT | form for form in FORMS),
    ],
    "/v1/completions": [
        {"prompt": "hello there", "max_tokens": 4, "echo": True, "logprobs": 2, "n": 2, "stop": "q"},
        {"prompt": ["a b", "c"], "max_tokens": 3, "stream": True, "best_of": 1, "suffix": None},
        {"prompt": ["a b c", "c"], "max_tokens": 0, "stream": True, "echo": True, "logprobs": 3},
        {"prompt": [[1, 2, 3], [4]], "max_tokens": 2}, {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True},
    ],
    "/v1/score": [
        {"messages": CHAT["messages"], "completion": "two and more", "top_logprobs": 2, "enable_thinking": False},
        {"prompt": "hello there", "completion_token_ids": [5, 6, 7], "priority": 2, "stream": False},
        {"prompt": [1, 2, 3], "prompt_only": True, "top_logprobs": 20},
    ],
    "/v1/tokenize": [{"messages": CHAT["messages"], "return_pieces": True}, {"prompt": "x", "return_token_ids": True}],
    "/v1/apply-template": [{"messages": CHAT["messages"], "add_generation_prompt": False}],
    "/v1/detokenize": [{"token_ids": [1, 2, 3], "skip_special_tokens": True}, {"tokens": [7]}],
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 1.5, -0.5, 1e308, 10**30, -(2**63), 2**31, 2**63, "", "x", "0", "null", "\x00",
    "é😀", "﷽" * 50, "<|im_end|>", "<think>", "{{ 7*7 }}", "a" * 5000, [], [[]], [None], [1], ["x"], {}, {"": None},
    {"type": "text"}, {"role": "user"}, [0] * 300, "auto", "assistant", "tool", ["a", "b", "c", "d", "e"],
]  # fmt: skip
HEADERS: list[dict[str, str]] = [
    *[{}] * 20, {"content-type": "text/plain"}, {"content-type": "multipart/form-data; boundary=x"},
    {"content-encoding": "gzip"}, {"origin": "http://localhost:1"}, {"x-request-id": "a b"}, {"accept": "x/y"},
    {"authorization": "Basic ="}, {"host": "elsewhere"},
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def mutate(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One to three values replaced, removed, doubled or wrapped."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *path, last = rng.choice(list(places(body)))
        holder = body
        for key in path:
            holder = holder[key]
        match rng.randrange(6):
            case 0:
                del holder[last]
            case 1:
                holder[last] = [holder[last]]
            case 2 if isinstance(holder, list):
                holder.append(holder[last])
            case 3 if isinstance(holder, dict):
                holder[f"{last}_"] = holder[last]
            case _:
                holder[last] = copy.deepcopy(rng.choice(ODD))
        if not body:
            break
    return body


def spoil(text: bytes, rng: random.Random) -> bytes:
    """The text cut, or with a byte changed."""
    at = rng.randrange(len(text))
    return text[:at] if rng.random() < 0.5 else text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]


def check(path: str, body: dict[str, Any] | None, response: httpx.Response) -> None:
    """`body` is None when what was sent is no longer JSON for certain."""
    operation = ROUTES[path]
    where = f"{path} {json.dumps(body)[:2000]}: {response.status_code} {response.text[:500]}"
    assert response.status_code in (200, 400, 415), where
    if response.status_code != 200:
        assert SCHEMAS.problems("Error", response.json()) == [], where
    elif response.headers["content-type"].startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", where
        assert not [p for event in events[:-1] for p in SCHEMAS.problems(operation.event, json.loads(event))], where
    else:
        assert SCHEMAS.problems(operation.reply, response.json()) == [], where
    if body is not None and response.status_code == 200:
        assert SCHEMAS.problems(operation.request, body) == [], where


async def send_all(url: str, seed: int) -> tuple[Counter[tuple[str, int]], float]:
    """(route, status) of all answers, and the oldest heartbeat of any worker seen meanwhile, in seconds."""
    rng = random.Random(seed)
    seen: Counter[tuple[str, int]] = Counter()
    numbers = iter(range(NUM_MUTANTS))

    async def work(client: httpx.AsyncClient) -> None:
        for _ in numbers:
            path = rng.choice(list(BODIES))
            body: dict[str, Any] | None = mutate(rng.choice(BODIES[path]), rng)
            content = json.dumps(body).encode()
            if rng.random() < 0.1:
                body, content = None, spoil(content, rng)
            response = await client.post(path, content=content, headers=rng.choice(HEADERS))
            check(path, body, response)
            seen[path, response.status_code] += 1

    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        ages: list[float] = []
        watcher = asyncio.create_task(watch(client, ages))
        await asyncio.gather(*(work(client) for _ in range(CONCURRENCY)))
        watcher.cancel()
        ages += heartbeat_ages((await client.get("/metrics")).text)
    return seen, max(ages)


async def watch(client: httpx.AsyncClient, ages: list[float]) -> None:
    while True:
        ages += heartbeat_ages((await client.get("/metrics")).text)
        await asyncio.sleep(0.5)


def heartbeat_ages(metrics: str) -> list[float]:
    return [float(line.split()[-1]) for line in metrics.splitlines() if "heartbeat_age_seconds{" in line]


@pytest.mark.timeout(1200)
def test_no_body_breaks_anything(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "model.max_model_len=160", "log.level=warning") as server:
        seen, oldest_heartbeat_s = asyncio.run(send_all(server.url, seed=7))
        assert seen.total() == NUM_MUTANTS
        assert {path for path, status in seen if status == 200} == set(BODIES)
        metrics = httpx.get(f"{server.url}/metrics").text
        restarts = [line.split()[-1] for line in metrics.splitlines() if "process_restarts_total{" in line]
        assert restarts == ["0"] * 4
        assert oldest_heartbeat_s < 5
        assert server.capacity()["active_requests"] == 0
        assert "Traceback" not in server.log
        print(dict(sorted(seen.items())), f"oldest heartbeat {oldest_heartbeat_s:.2f} s")
