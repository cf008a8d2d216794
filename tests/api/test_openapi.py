"""The OpenAPI document: complete, valid, and true of what is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ipc.messages import Delta, Started, TextEvent, TokenLogprob
from sparkinfer.api.openapi import OPERATIONS, openapi_document
from sparkinfer.api.openapi_surfaces import SURFACE_OPERATIONS
from sparkinfer.config import ServerConfig
from sparkinfer.request import Request
from tests.api.app_server import AppServer, finished
from tests.openapi_schemas import Schemas

SCHEMAS = Schemas(openapi_document("1", "", has_keys=False))
CHAT = {"messages": [{"role": "user", "content": "héllo"}]}


def everything(request: Request) -> Iterator[list[TextEvent]]:
    """Reasoning, logprobs, an echo, text in two pieces."""
    entry = TokenLogprob(5, b"\xc3", float("-inf"), [(5, b"\xc3", -0.5), (6, b"b", float("nan"))])
    logprobs = [entry] if request.sampling.logprobs is not None else None
    yield [Started(request.request_id, 5, "echo" if request.echo else "")]
    for choice in range(request.n):
        yield [Delta(request.request_id, choice, "", "thinking", 1, logprobs)]
        yield [Delta(request.request_id, choice, "a", "", 1, logprobs), finished(request, choice)]


def test_every_route_is_described(app: AppServer, http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert described == {(o.path, o.method.upper()) for o in (*OPERATIONS, *SURFACE_OPERATIONS)}
    for path, method in described:
        response = http.request(method, path.replace("{id}", "tiny"), json=CHAT if method == "POST" else None)
        is_stored = path.startswith("/v1/responses/{id}")
        assert is_stored == (response.status_code == 404), path
        assert response.status_code != 405, path
        allowed = http.options(path.replace("{id}", "tiny")).headers["allow"]
        assert method in allowed


def test_schemas_are_schemas() -> None:
    document = openapi_document("1", "", has_keys=False)
    for name in document["components"]["schemas"]:
        SCHEMAS.validator(name)
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names == set(document["components"]["schemas"])


GETS = [(operation.path, operation.reply) for operation in OPERATIONS if operation.method == "get" and operation.reply]


@pytest.mark.parametrize(("path", "name"), GETS)
def test_documents_are_as_described(http: httpx.Client, path: str, name: str) -> None:
    assert SCHEMAS.problems(name, http.get(path.replace("{id}", "tiny")).json()) == []


POSTS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2}, "ChatCompletion"),
    ("/v1/chat/completions", CHAT, "ChatCompletion"),
    ("/v1/completions", {"prompt": "x", "logprobs": 2, "echo": True}, "Completion"),
    ("/v1/completions", {"prompt": ["x", "y"]}, "Completion"),
    ("/v1/score", CHAT | {"completion": "x", "top_logprobs": 2}, "Score"),
    ("/v1/tokenize", CHAT | {"return_pieces": True}, "Tokenized"),
    ("/v1/detokenize", {"tokens": [1, 2]}, "Detokenized"),
    ("/v1/apply-template", CHAT, "RenderedPrompt"),
]


@pytest.mark.parametrize(("path", "body", "name"), POSTS)
def test_answers_are_as_described(
    app: AppServer, http: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    app.pool.script = everything
    response = http.post(path, json=body)
    assert response.status_code == 200
    assert SCHEMAS.problems(name, response.json()) == []


@pytest.mark.parametrize(("path", "body", "name"), [p for p in POSTS if "completions" in p[0]])
def test_streams_are_as_described(
    app: AppServer, http: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    app.pool.script = everything
    text = http.post(path, json=body | {"stream": True}).text
    *events, done = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    event_name = "ChatCompletionChunk" if name == "ChatCompletion" else name
    for event in events:
        assert SCHEMAS.problems(event_name, json.loads(event)) == []


def test_errors_are_as_described(app: AppServer, http: httpx.Client) -> None:
    responses = [http.post("/v1/completions", json={}), http.get("/nope"), http.put("/health")]
    responses.append(http.get("/v1/models/x"))
    with AppServer(ServerConfig(api_keys=("key",))) as locked:
        responses.append(httpx.post(f"{locked.url}/v1/completions", json={}))
        open_paths = {o.path for o in OPERATIONS if o.method == "get" and not o.needs_key}
        for operation in OPERATIONS:
            status = httpx.request(operation.method, locked.url + operation.path.replace("{id}", "tiny")).status_code
            assert (status == 401) == (operation.path not in open_paths)
    assert [response.status_code for response in responses] == [400, 404, 405, 404, 401]
    for response in responses:
        assert SCHEMAS.problems("Error", response.json()) == []
