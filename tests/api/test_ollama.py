"""Ollama's API over HTTP: documents, bodies, streams, and the stock client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from ollama._types import ChatResponse, ListResponse, ProcessResponse, ShowResponse

from ipc.messages import Delta, Failed, Started, TokenLogprob
from sparkinfer.config import ServerConfig
from sparkinfer.doctor.ollama_stream import check_ollama_stream
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, Request
from tests.api.app_server import AppServer, finished
from tests.api.scripts import CLOCK, WEATHER, Part, says

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d",
                                         "parameters": {"type": "object", "properties": {}}}}  # fmt: skip
ANSWERS: list[tuple[Part, ...]] = [
    (("content", "Hello there"),),
    (("reasoning", "Hmm."), ("content", "\n\nHello")),
    (("reasoning", "Hmm."), ("content", "Looking."), WEATHER, CLOCK),
    (WEATHER, ("content", "and")),
    (),
]


@pytest.fixture
def client(app: AppServer) -> Iterator[ollama.Client]:
    made = ollama.Client(host=app.url, timeout=20)
    yield made
    made._client.close()


def test_greeting(http: httpx.Client) -> None:
    assert http.get("/").text == "Ollama is running"
    assert http.head("/").status_code == 200


def test_version_is_numeric_and_new_enough(http: httpx.Client) -> None:
    version = http.get("/api/version").json()["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


def test_documents(http: httpx.Client, client: ollama.Client) -> None:
    ListResponse.model_validate(http.get("/api/tags").json(), strict=False)
    (entry,) = http.get("/api/tags").json()["models"]
    assert entry["name"] == entry["model"] == "tiny:latest"
    assert re.fullmatch(r"[0-9a-f]{64}", entry["digest"])
    assert set(entry["details"]) == {
        "parent_model", "format", "family", "families", "parameter_size", "quantization_level",
    }  # fmt: skip
    (running,) = client.ps().models
    assert (running.model, running.context_length) == ("tiny:latest", 512)
    ProcessResponse.model_validate(http.get("/api/ps").json())
    shown = client.show("tiny")
    assert shown.modelinfo["llama.context_length"] == 512
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion", "tools"]
    assert shown.template
    ShowResponse.model_validate(http.post("/api/show", json={"name": "tiny:latest"}).json())


@pytest.mark.parametrize("name", ["tiny", "TINY:latest", "default", "tiny:135m"])
def test_names_of_the_model(http: httpx.Client, name: str) -> None:
    assert http.post("/api/show", json={"model": name}).status_code == 200


@pytest.mark.parametrize("path", ["/api/show", "/api/chat", "/api/generate"])
def test_other_models_are_not_found(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json=CHAT | {"model": "llama3", "prompt": "x"})
    assert (reply.status_code, reply.json()) == (404, {"error": "model 'llama3' not found; this server has 'tiny'"})
    missing = http.post(path, json={"messages": CHAT["messages"], "prompt": "x"})
    assert (missing.status_code, missing.json()) == (400, {"error": "model: is required"})


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/embed"), ("POST", "/api/embeddings"), ("POST", "/api/pull"), ("POST", "/api/push"),
     ("POST", "/api/create"), ("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", "/api/blobs/sha256:1")],
)  # fmt: skip
def test_what_is_not_done_here_says_so(http: httpx.Client, method: str, path: str) -> None:
    reply = http.request(method, path, json={"model": "tiny"})
    assert reply.status_code == 501
    assert isinstance(reply.json()["error"], str)


@pytest.mark.parametrize("parts", ANSWERS)
@pytest.mark.parametrize("piece", [1, 100])
def test_streams_keep_the_rules(app: AppServer, http: httpx.Client, parts: tuple[Part, ...], piece: int) -> None:
    app.pool.script = says(*parts, piece=piece)
    response = http.post("/api/chat", json=CHAT | {"tools": [TOOL]})  # a stream unless told otherwise
    assert response.headers["content-type"] == "application/x-ndjson"
    assert check_ollama_stream(response.text, is_chat=True) == []
    for line in response.text.splitlines():
        ChatResponse.model_validate(json.loads(line))


@pytest.mark.parametrize("parts", ANSWERS)
def test_a_stream_adds_up_to_the_whole(app: AppServer, client: ollama.Client, parts: tuple[Part, ...]) -> None:
    app.pool.script = says(*parts)
    whole = client.chat("tiny", CHAT["messages"], tools=[TOOL])
    lines = list(client.chat("tiny", CHAT["messages"], tools=[TOOL], stream=True))
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert "".join(line.message.thinking or "" for line in lines) == (whole.message.thinking or "")
    calls = [call for line in lines for call in line.message.tool_calls or []]
    assert calls == list(whole.message.tool_calls or [])
    assert (lines[-1].done_reason, lines[-1].eval_count) == (whole.done_reason, whole.eval_count)


def test_calls_are_whole(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = says(WEATHER, CLOCK, piece=1)
    lines = [json.loads(line) for line in http.post("/api/chat", json=CHAT).text.splitlines()]
    assert [line["message"].get("tool_calls") for line in lines] == [
        [{"id": "call_abc123", "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}}],
        [{"id": "call_def456", "function": {"index": 1, "name": "now", "arguments": {}}}],
        None,
    ]


def test_a_call_without_an_end_is_left_out(app: AppServer, client: ollama.Client) -> None:
    app.pool.script = says(("call", "call_1", "now", '{"a": "b'), reason=FinishReason.LENGTH)
    for stream in (False, True):
        reply = client.chat("tiny", CHAT["messages"], stream=stream)
        last = list(reply)[-1] if stream else reply
        assert (last.done_reason, last.message.tool_calls) == ("length", None)


def test_durations_are_nanoseconds(app: AppServer, client: ollama.Client) -> None:
    app.pool.script = says(("content", "abcdef"))
    reply = client.chat("tiny", CHAT["messages"])
    assert (reply.prompt_eval_count, reply.eval_count) == (7, 2)
    assert (reply.prompt_eval_duration, reply.eval_duration) == (10_000_000, 20_000_000)
    assert reply.total_duration >= 30_000_000


def test_generate_answers(app: AppServer, client: ollama.Client, http: httpx.Client) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Hello"))
    assert client.generate("tiny", "p").response == "Hello"
    lines = list(client.generate("tiny", "p", stream=True))
    assert "".join(line.response for line in lines) == "Hello"
    assert "".join(line.thinking or "" for line in lines) == "Hmm."
    text = http.post("/api/generate", json={"model": "tiny", "prompt": "p"}).text
    assert check_ollama_stream(text, is_chat=False) == []


@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), (0, "unload"), ("5m", "load")])
def test_nothing_to_answer(client: ollama.Client, keep_alive: Any, reason: str) -> None:
    for reply in (client.generate("tiny", "", keep_alive=keep_alive), client.chat("tiny", [], keep_alive=keep_alive)):
        assert (reply.done, reply.done_reason) == (True, reason)


def test_logprobs(app: AppServer, client: ollama.Client) -> None:
    def script(request: Request) -> Iterator[list[Any]]:
        entry = TokenLogprob(5, b"a", -0.5, [(5, b"a", -0.5)])
        yield [Started(request.request_id, 3), Delta(request.request_id, 0, "a", "", 1, [entry])]
        yield [finished(request)]

    app.pool.script = script
    whole = client.chat("tiny", CHAT["messages"], logprobs=True, top_logprobs=1)
    assert [(entry.token, entry.logprob) for entry in whole.logprobs] == [("a", -0.5)]
    first, _ = client.chat("tiny", CHAT["messages"], logprobs=True, top_logprobs=1, stream=True)
    assert first.logprobs == whole.logprobs


@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_headers(app: AppServer, client: ollama.Client, status: int, stream: bool) -> None:
    app.pool.script = lambda r: [[Failed(r.request_id, status, "because")]]
    with pytest.raises(ollama.ResponseError, match="because") as raised:
        list(client.chat("tiny", CHAT["messages"], stream=stream))
    assert raised.value.status_code == status


def test_an_error_inside_a_stream(app: AppServer, client: ollama.Client) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3), Delta(r.request_id, 0, "a", "", 1)], ...]
    lines = client.chat("tiny", CHAT["messages"], stream=True)
    assert next(lines).message.content == "a"
    app.fail_all(RequestError(503, "gone"))
    with pytest.raises(ollama.ResponseError, match="gone"):
        list(lines)


def test_silence_is_filled_with_lines_that_say_nothing(app: AppServer, client: ollama.Client) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3), Delta(r.request_id, 0, "a", "", 1)], ...]
    lines = client.chat("tiny", CHAT["messages"], stream=True)
    next(lines)
    app.call(app.generations.tick)
    app.call(app.generations.tick)
    line = next(lines)
    assert (line.message.content, line.done) == ("", False)
    lines.close()


def test_the_doors_own_errors_have_the_apis_shape(http: httpx.Client) -> None:
    replies = [http.get("/api/chat"), http.get("/api/nope"), http.post("/api/chat", content=b"{")]
    assert [reply.status_code for reply in replies] == [405, 404, 400]
    with AppServer(ServerConfig(api_keys=("key",))) as locked:
        replies.append(httpx.post(f"{locked.url}/api/chat", json=CHAT))
        assert [httpx.get(f"{locked.url}{path}").status_code for path in ("/", "/api/version", "/api/tags")] == [
            200, 200, 401,
        ]  # fmt: skip
    assert replies[-1].status_code == 401
    assert all(isinstance(reply.json()["error"], str) for reply in replies)
