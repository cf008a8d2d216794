"""Chat answers with calls: as the OpenAPI document describes them, with nothing in them that nobody could carry out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ipc.messages import Delta, Failed, Started, TextEvent
from sparkinfer.api.openapi import openapi_document
from sparkinfer.request import FinishReason, Request, ToolCallDelta
from tests.api.app_server import AppServer, finished
from tests.openapi_schemas import Schemas

SCHEMAS = Schemas(openapi_document("1", "", has_keys=False))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
CALLS = [
    ToolCallDelta(0, "call_a", "f"), ToolCallDelta(0, arguments='{"a": "}'), ToolCallDelta(0, arguments='"}'),
    ToolCallDelta(1, "call_b", "g"), ToolCallDelta(1, arguments="{"),
]  # fmt: skip


def calling(request: Request) -> Iterator[list[TextEvent]]:
    """Content, one call in pieces, and another that is complete only where the answer is."""
    is_whole = request.sampling.max_tokens > 10
    reason = FinishReason.TOOL_CALLS if is_whole else FinishReason.LENGTH
    yield [Started(request.request_id, 5)]
    yield [Delta(request.request_id, 0, "Sure.", "hm", 1)]
    for call in [*CALLS, *([ToolCallDelta(1, arguments="}")] if is_whole else [])]:
        yield [Delta(request.request_id, 0, "", "", 1, None, [call])]
    yield [finished(request, reason=reason)]


def test_a_whole_answer(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = calling
    document = http.post("/v1/chat/completions", json=BODY).json()
    assert SCHEMAS.problems("ChatCompletion", document) == []
    (choice,) = document["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("Sure.", "hm")
    assert choice["message"]["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a": "}"}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_a_call_cut_short_is_left_out(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = calling
    (choice,) = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 9}).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_a"]


@pytest.mark.parametrize("max_tokens", [9, 50])
def test_a_stream(app: AppServer, http: httpx.Client, max_tokens: int) -> None:
    app.pool.script = calling
    text = http.post("/v1/chat/completions", json=BODY | {"stream": True, "max_tokens": max_tokens}).text
    *lines, done = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines]
    assert done == "[DONE]"
    assert [problem for chunk in chunks for problem in SCHEMAS.problems("ChatCompletionChunk", chunk)] == []
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert deltas[0] == {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert deltas[1] == {"index": 0, "function": {"arguments": '{"a": "}'}}
    assert [set(delta) for delta in deltas if "id" not in delta] == [{"index", "function"}] * (len(deltas) - 2)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert reasons == ["tool_calls" if max_tokens == 50 else "length"]


def failing(request: Request) -> Iterator[list[TextEvent]]:
    yield [Started(request.request_id, 5), Delta(request.request_id, 0, "Sure.", "", 1)]
    yield [Failed(request.request_id, 502, "The model's output cannot be used: x", None, "invalid_tool_output")]


def test_output_that_cannot_be_used_is_502_or_the_last_event(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = failing
    response = http.post("/v1/chat/completions", json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "invalid_tool_output")
    text = http.post("/v1/chat/completions", json=BODY | {"stream": True}).text
    assert '"code":"invalid_tool_output"' in text.replace(" ", "")
    assert 'outcome="invalid_tool_output"} 2.0' in http.get("/metrics").text
