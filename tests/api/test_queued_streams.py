"""A stream that waits in the queue begins after a while, says that it lives, and tells an error in its own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sparkinfer.config import ServerConfig
from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.sse_events import parse_events
from sparkinfer.errors import RequestError
from tests.api.app_server import AppServer
from tests.api.test_field_names import SURFACES

FIRST = {
    "/v1/chat/completions": b": keep-alive",
    "/v1/messages": b"event: ping",
    "/v1/responses": b"event: response.in_progress",
    "/api/chat": b'"done":false',
    "/api/generate": b'"done":false',
    "/api/v1/chat": b"event: prompt_processing.progress",
}


@pytest.fixture(scope="module")
def busy_app() -> Iterator[AppServer]:
    with AppServer(ServerConfig(sse_keepalive_s=1)) as app:
        app.pool.script = lambda r: [...]
        yield app


@pytest.mark.parametrize("path", SURFACES)
def test_it_begins_before_it_is_accepted(busy_app: AppServer, path: str) -> None:
    body = json.dumps(SURFACES[path] | {"stream": True})
    with httpx.Client(base_url=busy_app.url, timeout=20) as http, http.stream("POST", path, content=body) as response:
        assert response.status_code == 200
        received = b""
        for chunk in response.iter_bytes():
            received += chunk
            if FIRST[path] in received and b"no room" not in received:
                busy_app.fail_all(RequestError(429, "no room"))
    assert b"no room" in received
    if path == "/v1/responses":
        assert check_responses_stream(parse_events(received.decode())) == []
    elif path == "/v1/messages":
        events: list[Any] = parse_events(received.decode())
        assert [event.name for event in events] == ["ping", "error"]
        assert events[-1].data["error"]["type"] == "rate_limit_error"
    elif path == "/api/v1/chat":
        assert received.index(b"chat.start") < received.index(b"prompt_processing.start")
        assert received.count(b"event: chat.start") == 1


def test_what_is_not_streamed_waits_for_its_status(busy_app: AppServer) -> None:
    with httpx.Client(base_url=busy_app.url, timeout=1.5) as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=SURFACES["/v1/chat/completions"])
