"""What the OpenAPI document says of the APIs beside OpenAI's completions is what they answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sparkinfer.api.openapi import openapi_document
from sparkinfer.api.openapi_surfaces import SURFACE_OPERATIONS
from sparkinfer.config import ServerConfig
from sparkinfer.doctor.sse_events import parse_events
from tests.api.app_server import AppServer
from tests.api.scripts import WEATHER, says
from tests.openapi_schemas import Schemas

SCHEMAS = Schemas(openapi_document("1", "", has_keys=False))
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "x", "max_tokens": 5, "messages": MESSAGES},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": "hi", "store": True},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/api/show": {"model": "tiny"},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "hi", "stream": False},
    "/api/v0/chat/completions": {"messages": MESSAGES},
    "/api/v0/completions": {"prompt": "hi"},
    "/api/v1/chat": {"model": "tiny", "input": "hi"},
}
POSTS = [operation for operation in SURFACE_OPERATIONS if operation.method == "post"]
GETS = [o for o in SURFACE_OPERATIONS if o.method == "get" and o.reply and "/v1/responses" not in o.path]


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_answers(app: AppServer, http: httpx.Client, operation: Any) -> None:
    app.pool.script = says(("reasoning", "a"), ("content", "b"), WEATHER)
    body = BODIES[operation.path]
    assert SCHEMAS.problems(operation.request, body) == []
    reply = http.post(operation.path, json=body)
    assert reply.status_code == 200
    assert SCHEMAS.problems(operation.reply, reply.json()) == []


@pytest.mark.parametrize("operation", [o for o in POSTS if o.event], ids=lambda operation: operation.path)
def test_streams(app: AppServer, http: httpx.Client, operation: Any) -> None:
    app.pool.script = says(("reasoning", "a"), ("content", "b"), WEATHER)
    reply = http.post(operation.path, json=BODIES[operation.path] | {"stream": True})
    assert reply.headers["content-type"].partition(";")[0] == operation.stream_type
    if operation.stream_type == "application/x-ndjson":
        items = [json.loads(line) for line in reply.text.splitlines()]
    else:
        items = [event.data for event in parse_events(reply.text) if event.data != "[DONE]"]
    assert [problem for item in items for problem in SCHEMAS.problems(operation.event, item)] == []


@pytest.mark.parametrize("operation", GETS, ids=lambda operation: operation.path)
def test_documents(http: httpx.Client, operation: Any) -> None:
    assert SCHEMAS.problems(operation.reply, http.get(operation.path.replace("{id}", "tiny")).json()) == []


def test_stored_responses(http: httpx.Client) -> None:
    stored = http.post("/v1/responses", json=BODIES["/v1/responses"]).json()["id"]
    assert SCHEMAS.problems("Response", http.get(f"/v1/responses/{stored}").json()) == []
    assert SCHEMAS.problems("ResponseItems", http.get(f"/v1/responses/{stored}/input_items").json()) == []
    assert SCHEMAS.problems("ResponseDeleted", http.delete(f"/v1/responses/{stored}").json()) == []


def test_errors_and_keys() -> None:
    with AppServer(ServerConfig(api_keys=("key",))) as locked:
        for operation in SURFACE_OPERATIONS:
            path = operation.path.replace("{id}", "tiny")
            reply = httpx.request(operation.method, locked.url + path)
            assert (reply.status_code == 401) == operation.needs_key, path
            if operation.needs_key:
                assert SCHEMAS.problems(operation.error, reply.json()) == []
