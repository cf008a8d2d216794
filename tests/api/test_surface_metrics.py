"""What the APIs beside OpenAI's completions leave in the metrics, and where the model lies."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from sparkinfer.api.ollama.documents import ps_document
from tests.api.app_server import INFO, AppServer


def count(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"sparkinfer_{name} ")))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", b"no JSON"), ("/api/chat", b'{"model": "other"}'), ("/api/generate", b'{"model": "tiny"}'),
        ("/api/generate", b'{"model": "tiny", "prompt": 3}'), ("/v1/messages", b"{}"), ("/v1/responses", b"[]"),
        ("/v1/responses", b'{"input": "a", "previous_response_id": "resp_x"}'), ("/api/v1/chat", b"{}"),
    ],
)  # fmt: skip
def test_every_request_counts(http: httpx.Client, path: str, body: bytes) -> None:
    before = count(http, "requests_total")
    reply = http.post(path, content=body)
    assert count(http, "requests_total") == before + 1, reply.text


def test_an_unready_server_counts_what_it_refuses(app: AppServer, http: httpx.Client) -> None:
    before = count(http, "requests_total")
    app.service.is_ready = False
    assert http.post("/api/chat", json={"model": "tiny", "messages": []}).status_code == 503
    assert count(http, "requests_total") == before + 1


def test_skipped_tools_are_counted(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    before = count(http, "requests_with_skipped_tools_total")
    for _ in range(2):
        body: dict[str, Any] = {"input": "a", "tools": [{"type": "a_new_kind"}]}
        assert http.post("/v1/responses", json=body).headers["x-sparkinfer-skipped-tools"] == "a_new_kind"
    assert count(http, "requests_with_skipped_tools_total") == before + 2
    assert caplog.text.count("a_new_kind") == 1  # the log hears of each kind once


def test_the_memory_that_is_told_of_is_the_gpus() -> None:
    on_gpu = msgspec.structs.replace(INFO, num_bytes=100, is_on_gpu=True)
    for info, size in ((on_gpu, 100), (msgspec.structs.replace(on_gpu, is_on_gpu=False), 0)):
        (entry,) = ps_document(info)["models"]
        assert (entry["size"], entry["size_vram"]) == (100, size)
