"""Routes, statuses, headers and limits over a real socket."""

from __future__ import annotations

import json
import re
import socket

import httpx
import pytest

from sparkinfer.config import ServerConfig
from tests.api.app_server import AppServer
from tests.api.error_checks import check_error

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}]}


def test_small_documents(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert http.get("/v1/info").json()["max_context"] == 512
    capacity = http.get("/v1/capacity").json()
    assert (capacity["accepting_requests"], capacity["max_queue_depth"]) == (True, 0)
    assert (capacity["active_requests"], capacity["waiting_requests"], capacity["free_kv_blocks"]) == (3, 1, 40)
    (model,) = http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["context_length"], model["is_ready"]) == ("tiny", "model", 512, True)
    assert http.get("/v1/models/tiny").json() == model


@pytest.mark.parametrize("path", ["/health/", "/health?x=1", "/health/?beta=true", "/v1/models/tiny/"])
def test_trailing_slash_and_query_are_tolerated(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


def test_head_is_get_without_body(http: httpx.Client) -> None:
    response = http.head("/v1/models")
    assert (response.status_code, response.content) == (200, b"")
    assert http.head("/nope").status_code == 404


@pytest.mark.parametrize("path", ["/nope", "/v1/v1/models", "/v1/chat", "/%00", "/v1/chat/completions/x"])
def test_unknown_path(http: httpx.Client, path: str) -> None:
    check_error(http.post(path, json=BODY), 404, "not_found")


def test_unknown_model(http: httpx.Client) -> None:
    check_error(http.get("/v1/models/owner/other"), 404, "model_not_found")


WRONG_METHODS = [
    ("GET", CHAT, "POST, OPTIONS"),
    ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
    ("HEAD", CHAT, "POST, OPTIONS"),
]


@pytest.mark.parametrize(("method", "path", "allow"), WRONG_METHODS)
def test_wrong_method(http: httpx.Client, method: str, path: str, allow: str) -> None:
    response = http.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/tokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"temperature":NaN}', b'{"a":1,"a":2}', b"\xff", b"[" * 100_000])
def test_bad_json_is_a_400(http: httpx.Client, path: str, body: bytes) -> None:
    check_error(http.post(path, content=body), 400, None)


def test_bad_field_is_named(http: httpx.Client) -> None:
    error = check_error(http.post(CHAT, json=BODY | {"temperature": 3}), 400, None)
    assert (error["param"], error["type"]) == ("temperature", "invalid_request_error")


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
def test_content_type_does_not_matter(http: httpx.Client, content_type: str) -> None:
    response = http.post(CHAT, content=json.dumps(BODY), headers={"content-type": content_type})
    assert response.json()["choices"][0]["message"]["content"] == "Hello"


def test_bodies_that_are_not_plain_json(http: httpx.Client) -> None:
    check_error(http.post(CHAT, content=b"x", headers={"content-encoding": "gzip"}), 415, "unsupported_media_type")
    check_error(http.post(CHAT, files={"a": b"x"}), 415, "unsupported_media_type")


def test_chunked_body(http: httpx.Client) -> None:
    parts = iter([json.dumps(BODY).encode()[:20], json.dumps(BODY).encode()[20:]])
    assert http.post(CHAT, content=parts).status_code == 200


@pytest.fixture(scope="module")
def guarded() -> object:
    with AppServer(ServerConfig(api_keys=("right", "another"), max_body_mib=1, always_stream_usage=False)) as running:
        yield running


def test_body_limit(guarded: AppServer) -> None:
    headers = {"authorization": "Bearer right"}
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        big = b'{"x":"' + b"a" * (1 << 20) + b'"}'
        check_error(client.post(CHAT, content=big), 413, "request_too_large")
        check_error(client.post(CHAT, content=iter([big[:600_000], big[600_000:]])), 413, "request_too_large")
        fitting = json.dumps(BODY | {"x": "a" * (1 << 19)})
        assert client.post(CHAT, content=fitting).status_code == 200


@pytest.mark.parametrize("key", ["Bearer right", "bearer  right", "BEARER another"])
def test_right_key(guarded: AppServer, key: str) -> None:
    assert httpx.post(guarded.url + CHAT, json=BODY, headers={"authorization": key}).status_code == 200


@pytest.mark.parametrize(
    "key", [None, "", "Bearer", "Bearer wrong", "Bearer righ", "Basic right", "right", b"Bearer \xff"]
)
def test_wrong_key(guarded: AppServer, key: str | bytes | None) -> None:
    headers = {} if key is None else {"authorization": key}
    response = httpx.post(guarded.url + CHAT, json=BODY, headers=headers)
    check_error(response, 401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert httpx.get(guarded.url + "/v1/info", headers=headers).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/tiny", "/v1/capacity", "/metrics"])
def test_open_routes_need_no_key(guarded: AppServer, path: str) -> None:
    assert httpx.get(guarded.url + path).status_code == 200


def test_usage_can_be_left_to_the_client(guarded: AppServer) -> None:
    headers = {"authorization": "Bearer right"}
    for options, expected in [(None, 0), ({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)]:
        body = BODY | {"stream": True, "stream_options": options}
        text = httpx.post(guarded.url + CHAT, json=body, headers=headers).text
        assert text.count('"usage"') == expected
        assert text.endswith("data: [DONE]\n\n")


def test_stream_headers_and_frames(http: httpx.Client) -> None:
    response = http.post(CHAT, json=BODY | {"stream": True, "n": 2})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event[6:]) for event in events[:-2]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    for index in (0, 1):
        own = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert "role" in own[0]["delta"]
        assert "".join(c["delta"].get("content") or "" for c in own) == "Hello"
        assert [c["finish_reason"] for c in own].count("stop") == 1


def test_completions_of_several_prompts(http: httpx.Client) -> None:
    document = http.post("/v1/completions", json={"prompt": ["a", "b"], "n": 2, "echo": True}).json()
    assert [(c["index"], c["text"]) for c in document["choices"]] == [(0, "aa"), (1, "aa"), (2, "bb"), (3, "bb")]
    usage = document["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 4)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def test_tokenize(http: httpx.Client) -> None:
    assert http.post("/v1/tokenize", json=BODY).json() == {
        "tokens": 5, "max_context": 512, "max_output_tokens": 64, "model": "tiny"
    }  # fmt: skip
    assert http.post("/v1/tokenize", json=BODY | {"return_token_ids": True}).json()["token_ids"] == [0, 1, 2, 3, 4]
    assert http.post("/v1/tokenize", json={"prompt": "abc"}).json()["tokens"] == 3
    check_error(http.post("/v1/tokenize", json={}), 400, None)


def test_http_1_0_client_and_absolute_target(app: AppServer) -> None:
    body = json.dumps(BODY).encode()
    for target, version in [("/v1/chat/completions", "1.0"), (f"http://x{CHAT}?a=b", "1.1")]:
        with socket.create_connection(("127.0.0.1", app.port)) as raw:
            head = (
                f"POST {target} HTTP/{version}\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            raw.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: raw.recv(65536), b""))
        assert b" 200 OK" in answer.split(b"\r\n")[0]
        assert b'"content":"Hello"' in answer


def test_metrics(http: httpx.Client) -> None:
    def values(text: str) -> dict[str, float]:
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    before = values(http.get("/metrics").text)
    http.post(CHAT, json=BODY | {"stream": True})
    http.post(CHAT, json=BODY)
    http.post(CHAT, json={})
    for i in range(50):
        http.get(f"/scan/{i}")
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    after = values(response.text)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("sparkinfer_requests_total") == 3
    assert grown("sparkinfer_requests_streaming_total") == 1
    assert grown('sparkinfer_requests_by_outcome_total{outcome="ok"}') == 2
    assert grown('sparkinfer_requests_by_outcome_total{outcome="client_error"}') == 1
    assert grown('sparkinfer_tokens_total{kind="prompt"}') == 10
    assert grown('sparkinfer_tokens_total{kind="completion"}') == 10
    assert grown('sparkinfer_http_responses_total{route="other",status="404"}') == 50
    assert grown("sparkinfer_time_to_first_token_seconds_count") == 2
    assert grown("sparkinfer_inter_token_latency_seconds_count") == 8
    assert grown("sparkinfer_request_duration_seconds_count") == 3
    assert after["sparkinfer_free_kv_blocks"] == 40
    assert after["sparkinfer_uptime_seconds"] > 0
    assert not re.search("scan", response.text)
