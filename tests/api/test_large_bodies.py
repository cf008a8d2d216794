"""A large body holds up nobody while it is parsed and checked, and is answered as a small one is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.app_server import AppServer
from workers import http_exchange, http_generations, http_prompts
from workers.http_body_thread import LARGE_BYTES

TEXT = "x" * LARGE_BYTES
MESSAGES = [{"role": "user", "content": TEXT}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize(("module", "name", "path"), [
    (http_exchange, "parse_object", "/v1/chat/completions"),
    (http_generations, "parse_chat", "/v1/chat/completions"),
    (http_prompts, "_read_question", "/v1/tokenize"),
    (http_prompts, "_read_chat", "/v1/apply-template"),
])  # fmt: skip
def test_others_are_answered_meanwhile(
    app: AppServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, path: str
) -> None:
    is_parsing, goes_on = threading.Event(), threading.Event()
    parse = getattr(module, name)

    def slow(*args: Any) -> Any:
        is_parsing.set()
        assert goes_on.wait(20)
        return parse(*args)

    monkeypatch.setattr(module, name, slow)
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(httpx.post, app.url + path, json={"messages": MESSAGES}, timeout=20)
        try:
            assert is_parsing.wait(20)
            assert http.get("/health").status_code == 200
        finally:
            goes_on.set()
        assert large.result().status_code == 200


def test_errors_are_the_same(http: httpx.Client) -> None:
    no_list, repeated = f'{{"messages": "{TEXT}"}}', f'{{"a": 1, "a": "{TEXT}"}}'
    for content, words in ((TEXT, "not valid JSON"), (no_list, "messages"), (repeated, "duplicate")):
        response = http.post("/v1/chat/completions", content=content)
        assert (response.status_code, words in response.json()["error"]["message"]) == (400, True)
