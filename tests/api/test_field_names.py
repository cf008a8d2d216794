"""Errors name fields as the client spelled them, whichever API it speaks, before a stream and in it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ipc.messages import Delta, Failed, Started
from sparkinfer.api.field_names import FieldNames
from sparkinfer.errors import RequestError
from tests.api.app_server import AppServer

MESSAGES = [{"role": "user", "content": "Hello"}]
SURFACES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"model": "tiny", "max_tokens": 5, "messages": MESSAGES},
    "/v1/responses": {"input": "Hello"},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "Hello", "stream": False},
    "/api/v1/chat": {"model": "tiny", "input": "Hello"},
}


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/api/chat", {"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ("/api/chat", {"options": {"top_p": 2}}, "options.top_p"),
        ("/api/generate", {"options": {"stop": [""]}}, "options.stop[0]"),
        ("/api/v1/chat", {"repeat_penalty": 0}, "repeat_penalty"),
        ("/api/v1/chat", {"max_output_tokens": 0}, "max_output_tokens"),
        ("/api/v1/chat", {"input": None}, "input"),
        ("/v1/responses", {"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_values_of_the_body(http: httpx.Client, path: str, fields: dict[str, Any], name: str) -> None:
    reply = http.post(path, json=SURFACES[path] | fields)
    error = reply.json()["error"]
    assert (reply.status_code, (error if isinstance(error, str) else error["message"]).split(":")[0]) == (400, name)


SCHEMA = "response_format.json_schema.schema.type"


@pytest.mark.parametrize(
    ("path", "param", "name"),
    [
        ("/v1/chat/completions", SCHEMA, SCHEMA),
        ("/v1/messages", SCHEMA, "output_config.format.schema.type"),
        ("/v1/responses", SCHEMA, "text.format.schema.type"),
        ("/v1/responses", "messages[3]", "input"),
        ("/api/chat", SCHEMA, "format.type"),
        ("/api/chat", "messages[3]", "messages[3]"),
        ("/api/generate", "messages", "prompt"),
        ("/api/v1/chat", "messages", "input"),
    ],
)
def test_what_lies_below_found_out(app: AppServer, http: httpx.Client, path: str, param: str, name: str) -> None:
    app.pool.script = lambda r: [[Failed(r.request_id, 400, f"{param}: is odd", param)]]
    for stream in (False, True):
        error = http.post(path, json=SURFACES[path] | {"stream": stream}).json()["error"]
        assert (error if isinstance(error, str) else error["message"]) == f"{name}: is odd"
        assert isinstance(error, str) or error.get("param", name) == name


def test_tools_have_the_clients_own_numbers(app: AppServer, http: httpx.Client) -> None:
    def odd(at: str) -> None:
        app.pool.script = lambda r: [[Failed(r.request_id, 400, f"{at}.a: is odd", f"{at}.a")]]

    search: dict[str, Any] = {"type": "web_search", "name": "web_search"}
    inner: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    dial = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}}
    tools = [search, {"type": "namespace", "name": "ns", "tools": [inner]}, dial]
    body = SURFACES["/v1/responses"] | {"tools": tools}
    for at, name in (("tools[0].function.parameters", "tools[1].tools[0].parameters.a"),
                     ("tools[1].function.parameters", "tools[2].format.a")):  # fmt: skip
        odd(at)
        assert http.post("/v1/responses", json=body).json()["error"]["param"] == name
    odd("tools[0].function.parameters")
    body = SURFACES["/v1/messages"] | {"tools": [search, {"name": "f", "input_schema": {"type": "object"}}]}
    message = http.post("/v1/messages", json=body).json()["error"]["message"]
    assert message == "tools[1].input_schema.a: is odd"


def test_in_a_stream_that_has_begun(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = lambda r: [
        [Started(r.request_id, 1)], [Delta(r.request_id, 0, "a", "", 1)], [Failed(r.request_id, 502, "x: is", "top_k")],
        [Failed(r.request_id, 502, f"{SCHEMA}: is not met", SCHEMA)],
    ]  # fmt: skip
    lines = http.post("/api/chat", json=SURFACES["/api/chat"] | {"stream": True}).text.splitlines()
    assert json.loads(lines[-1]) == {"error": "x: is"}


def test_names_are_whole() -> None:
    names = FieldNames(("top", "up"), ("a", "b"))
    for param in ("top_k", "tops", "x.top", "top-k"):
        assert names.in_error(RequestError(400, "m", param=param)).param == param
    for param, renamed in (("top", "up"), ("top[3].a", "up[3].a"), ("top.top", "up.top")):
        assert names.in_error(RequestError(400, "m", param=param)).param == renamed
