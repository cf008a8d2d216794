"""Bodies of the APIs beside OpenAI's completions, each with something wrong or odd in it: never a 5xx, never silence.

SPARKINFER_MUTANTS=20000 runs that many.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from typing import Any

import httpx

from sparkinfer.api.openapi import openapi_document
from sparkinfer.api.openapi_surfaces import SURFACE_OPERATIONS
from sparkinfer.doctor.anthropic_stream import check_messages_stream
from sparkinfer.doctor.ollama_stream import check_ollama_stream
from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.sse_events import parse_events
from tests.openapi_schemas import Schemas
from tests.system.harness import Server
from tests.system.test_mutated_bodies import HEADERS, mutate, spoil

NUM_MUTANTS = int(os.environ.get("SPARKINFER_MUTANTS", "400"))
CONCURRENCY = 16
SCHEMAS = Schemas(openapi_document("1", "", has_keys=False))
ROUTES = {operation.path: operation for operation in SURFACE_OPERATIONS if operation.method == "post"}
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0}}, "required": ["x"]}

ANTHROPIC: dict[str, Any] = {
    "model": "m", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop_sequences": ["x", "yz"],
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
            {"type": "text", "text": "b"}, {"type": "tool_use", "id": "u", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "2"}], "is_error": True},
            {"type": "text", "text": "c"}]},
        {"role": "system", "content": "now", "clear_at": "never"}, {"role": "user", "content": "go on"},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": PARAMETERS, "strict": False},
              {"type": "web_search_20250305", "name": "web_search"}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low"}, "context_management": {"edits": []}, "stream": False,
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "m", "instructions": "Be brief.", "max_output_tokens": 4, "temperature": 0.5, "top_p": 0.9,
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": "b"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "sparkinfer:aGk="},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": [{"type": "output_text", "text": "c", "annotations": []}, {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "f1", "name": "f", "arguments": "{\"x\": 1}"},
        {"type": "custom_tool_call", "call_id": "f2", "name": "patch", "input": "p"},
        {"type": "function_call", "call_id": "f3", "name": "read", "namespace": "ns", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "f1", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "custom_tool_call_output", "call_id": "f2", "output": "ok"},
        {"type": "function_call_output", "call_id": "f3", "output": "3"}, {"type": "web_search_call", "id": "w"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS, "strict": True},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s: \"a\""}},
        {"type": "namespace", "name": "ns", "description": "d",
         "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "parallel_tool_calls": False, "reasoning": {"effort": "low", "summary": "auto"}, "top_logprobs": 1,
    "text": {"format": {"type": "text"}, "verbosity": "low"}, "include": ["message.output_text.logprobs"],
    "store": True, "stream": False, "metadata": {"a": "b"}, "truncation": "auto", "background": False, "user": "u",
}  # fmt: skip
OLLAMA: dict[str, Any] = {
    "model": "default", "stream": True, "think": False, "format": "", "keep_alive": "5m",
    "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "a", "images": []},
        {"role": "assistant", "content": "b", "thinking": "t", "tool_calls": [
            {"id": "i", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "2", "tool_name": "f"}, {"role": "user", "content": "go on"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}}],
    "options": {"num_predict": 4, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.1,
                "seed": 1, "stop": ["x"], "num_ctx": 512, "presence_penalty": 0.1},
    "logprobs": True, "top_logprobs": 1,
}  # fmt: skip
GENERATE = {key: value for key, value in OLLAMA.items() if key not in ("messages", "tools")}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "model": "default", "temperature": 0.5}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/messages": [ANTHROPIC, ANTHROPIC | {"stream": True}],
    "/v1/messages/count_tokens": [ANTHROPIC],
    "/v1/responses": [RESPONSES, RESPONSES | {"stream": True}],
    "/v1/responses/input_tokens": [RESPONSES],
    "/api/show": [{"model": "default", "verbose": True}],
    "/api/chat": [OLLAMA, OLLAMA | {"stream": False}],
    "/api/generate": [GENERATE | {"prompt": "p", "system": "s", "suffix": ""}, GENERATE | {"prompt": "p", "raw": True}],
    "/api/v0/chat/completions": [CHAT, CHAT | {"stream": True}],
    "/api/v0/completions": [{"prompt": "p", "max_tokens": 4, "model": "default"}],
    "/api/v1/chat": [{"model": "default", "input": [{"type": "text", "content": "a"}], "system_prompt": "s",
                      "reasoning": "off", "max_output_tokens": 4, "repeat_penalty": 1.1, "store": False, "stream": True,
                      "context_length": 100, "integrations": [], "temperature": 0.5, "top_k": 1, "min_p": 0.1}],
}  # fmt: skip
STREAMS = {"/v1/messages": check_messages_stream, "/v1/responses": check_responses_stream}


def problems_of(path: str, response: httpx.Response) -> list[str]:
    """What is wrong with the answer to a mutant of a body for `path`."""
    operation = ROUTES[path]
    if response.status_code != 200:
        known = response.status_code in (400, 404, 415)
        return SCHEMAS.problems(operation.error, response.json()) if known else [f"status {response.status_code}"]
    kind = response.headers["content-type"].partition(";")[0]
    if kind == "application/json":
        return SCHEMAS.problems(operation.reply, response.json())
    if kind == "application/x-ndjson":
        return check_ollama_stream(response.text, is_chat=path == "/api/chat")
    events = parse_events(response.text)
    if path in STREAMS:
        return STREAMS[path](events)
    return [p for e in events if e.data != "[DONE]" for p in SCHEMAS.problems(operation.event, e.data)]


async def send_all(url: str, seed: int) -> Counter[tuple[str, int]]:
    rng = random.Random(seed)
    seen: Counter[tuple[str, int]] = Counter()
    numbers = iter(range(NUM_MUTANTS))

    async def work(client: httpx.AsyncClient) -> None:
        for _ in numbers:
            path = rng.choice(list(BODIES))
            content = json.dumps(mutate(rng.choice(BODIES[path]), rng)).encode()
            if rng.random() < 0.1:
                content = spoil(content, rng)
            response = await client.post(path, content=content, headers=rng.choice(HEADERS))
            problems = problems_of(path, response)
            assert problems == [], f"{path} {content[:3000]!r}: {problems}: {response.text[:500]}"
            seen[path, response.status_code] += 1

    async with httpx.AsyncClient(base_url=url, timeout=30) as client, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work(client))
    return seen


def test_mutants_get_an_answer(scripted_server: Server) -> None:
    before = {process.pid for process in scripted_server.workers()}
    seen = asyncio.run(send_all(scripted_server.url, seed=3))
    assert sum(seen.values()) == NUM_MUTANTS
    for path in BODIES:
        assert seen[path, 200], f"{path}: no mutant was harmless"
        assert seen[path, 400], f"{path}: no mutant was refused"
    assert before <= {process.pid for process in scripted_server.workers()}  # grammars have brought a builder
