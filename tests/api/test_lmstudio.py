"""LM Studio's API over HTTP: lists of models, version 0 of chats, and version 1 with its events."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from ipc.messages import Delta, Failed, Started
from sparkinfer.doctor.sse_events import parse_events
from sparkinfer.errors import RequestError
from tests.api.app_server import AppServer
from tests.api.scripts import says

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
BODY: dict[str, Any] = {"model": "tiny", "input": "Hello"}
STATS = {"input_tokens", "total_output_tokens", "reasoning_output_tokens", "tokens_per_second",
         "time_to_first_token_seconds"}  # fmt: skip


def test_v0_models(http: httpx.Client) -> None:
    (model,) = http.get("/api/v0/models").json()["data"]
    assert model.items() >= {
        "id": "tiny", "object": "model", "type": "llm", "arch": "llama", "compatibility_type": "gguf",
        "quantization": "Q8_0", "state": "loaded", "max_context_length": 512,
    }.items()  # fmt: skip
    assert http.get("/api/v0/models/tiny").json() == model
    assert http.get("/api/v0/models/other").json()["error"]["type"] == "model_not_found"
    assert http.get("/api/v1/nothing").json()["error"]["type"] == "invalid_request"


def test_v1_models(http: httpx.Client) -> None:
    (model,) = http.get("/api/v1/models").json()["models"]
    assert (model["type"], model["key"], model["format"], model["max_context_length"]) == ("llm", "tiny", "gguf", 512)
    assert model["loaded_instances"] == [{"id": "tiny", "config": {"context_length": 512}}]
    assert model["capabilities"] == {"vision": False, "trained_for_tool_use": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/v0/chat/completions", CHAT | {"max_tokens": -1}), ("/api/v0/completions", {"prompt": "Hello"})],
)
def test_v0_adds_figures(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = http.post(path, json=body).json()
    assert reply["stats"] == {
        "tokens_per_second": 250.0, "time_to_first_token": 0.01, "generation_time": 0.02, "stop_reason": "eosFound",
    }  # fmt: skip
    assert reply["model_info"] == {"arch": "llama", "quant": "Q8_0", "format": "gguf", "context_length": 512}
    *_, last, done = parse_events(http.post(path, json=body | {"stream": True}).text)
    assert {key: last.data[key] for key in ("stats", "model_info", "runtime")} == {
        key: reply[key] for key in ("stats", "model_info", "runtime")
    }
    assert (last.data["choices"], done.data) == ([], "[DONE]")
    assert http.post(path, json=body | {"model": "other"}).status_code == 404


def test_v0_has_no_embeddings(http: httpx.Client) -> None:
    reply = http.post("/api/v0/embeddings", json={"input": "x"})
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (501, "not_implemented", "embeddings_unsupported")


@pytest.mark.parametrize("path", ["load", "unload", "download"])
def test_models_stay_as_they_are(http: httpx.Client, path: str) -> None:
    assert http.post(f"/api/v1/models/{path}", json={"model": "tiny"}).status_code == 501


def test_v1_chat(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Hello"))
    reply = http.post("/api/v1/chat", json=BODY | {"system_prompt": "s", "reasoning": "high", "top_k": 3,
                                                   "max_output_tokens": 5, "repeat_penalty": 1.1}).json()  # fmt: skip
    assert reply["output"] == [{"type": "reasoning", "content": "Hmm."}, {"type": "message", "content": "Hello"}]
    assert set(reply["stats"]) == STATS
    assert reply["response_id"].startswith("resp_")
    request = [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())][-1]
    assert [message.role for message in request.prompt.messages] == ["system", "user"]
    assert request.prompt.template_kwargs == {"enable_thinking": True, "reasoning_effort": "high"}
    sampling = request.sampling
    assert (sampling.top_k, sampling.max_tokens, sampling.repetition_penalty) == (3, 5, 1.1)


def test_v1_stream(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = says(("reasoning", "Hmm."), ("content", "Hello"), piece=3)
    events = parse_events(http.post("/api/v1/chat", json=BODY | {"stream": True}).text)
    assert all(event.name == event.data["type"] for event in events)
    assert [event.name for event in events] == [
        "chat.start", "prompt_processing.start", "prompt_processing.progress", "prompt_processing.progress",
        "prompt_processing.end", "reasoning.start", "reasoning.delta", "reasoning.delta", "reasoning.end",
        "message.start", "message.delta", "message.delta", "message.end", "chat.end",
    ]  # fmt: skip
    result = events[-1].data["result"]
    whole = http.post("/api/v1/chat", json=BODY).json()
    assert result | {"response_id": ""} == whole | {"response_id": ""}


def test_v1_goes_on_by_id(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = says(("content", "one"))
    first = http.post("/api/v1/chat", json=BODY).json()["response_id"]
    parts = [{"type": "text", "content": "a"}, {"type": "message", "content": "b"}]
    body = BODY | {"input": parts, "previous_response_id": first, "store": False}
    reply = http.post("/api/v1/chat", json=body).json()
    assert "response_id" not in reply
    request = [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())][-1]
    assert [message.content for message in request.prompt.messages] == ["Hello", "one", "ab"]
    with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", _strict_response_validation=True) as client:
        stored = client.responses.retrieve(first)
    assert (stored.output_text, stored.model, stored.status) == ("one", "tiny", "completed")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"model": None}, "model"), ({"input": None}, "input"), ({"input": []}, "input"),
     ({"input": [{"type": "image", "data_url": "x"}]}, "input[0]"), ({"input": [{"type": "x"}]}, "input[0].type"),
     ({"integrations": ["mcp/x"]}, "integrations"), ({"reasoning": "banana"}, "reasoning"),
     ({"previous_response_id": "resp_x"}, "previous_response_id")],
)  # fmt: skip
def test_v1_refusals_name_the_field(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    reply = http.post("/api/v1/chat", json=BODY | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request", param)


def test_v1_failures(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = lambda r: [[Failed(r.request_id, 503, "because")]]
    for stream in (False, True):
        reply = http.post("/api/v1/chat", json=BODY | {"stream": stream})
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "internal_error")
    app.pool.script = lambda r: [[Started(r.request_id, 3), Delta(r.request_id, 0, "a", "", 1)], ...]
    with http.stream("POST", "/api/v1/chat", json=BODY | {"stream": True}) as response:
        text = ""
        for chunk in response.iter_text():
            text += chunk
            if "message.delta" in text and "gone" not in text:
                app.fail_all(RequestError(503, "gone"))
    assert [event.name for event in parse_events(text)][-3:] == ["message.end", "error", "chat.end"]


def test_v1_silence_is_filled(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = lambda r: [[Started(r.request_id, 3)], ...]
    with http.stream("POST", "/api/v1/chat", json=BODY | {"stream": True}) as response:
        text = ""
        for chunk in response.iter_text():
            text += chunk
            if text.count("prompt_processing.progress") > 3:
                break
            app.call(app.generations.tick)
            app.call(app.generations.tick)
    assert text.count("event: prompt_processing.progress") == 2
