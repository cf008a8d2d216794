"""Clients that leave, workers that die, streams that wait."""

from __future__ import annotations

import json
import queue
import socket
import threading

import httpx
import pytest

from ipc.messages import Delta, Started
from sparkinfer.errors import RequestError
from sparkinfer.request import Request
from tests.api.app_server import AppServer

CHAT = "/v1/chat/completions"


def hanging(request: Request) -> list[object]:
    """One token, then silence."""
    return [[Started(request.request_id, 1)], [Delta(request.request_id, 0, "x", "", 1)], ...]


def unstarted(_: Request) -> list[object]:
    """Not even accepted."""
    return [...]


def send(app: AppServer, body: dict[str, object]) -> socket.socket:
    content = json.dumps({"messages": [{"role": "user", "content": "Hello"}]} | body).encode()
    raw = socket.create_connection(("127.0.0.1", app.port), timeout=20)
    raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    return raw


def check_one_abort(app: AppServer, request: Request) -> None:
    assert app.pool.aborts.get(timeout=20) == request.request_id
    app.call(lambda: None)
    with pytest.raises(queue.Empty):
        app.pool.aborts.get_nowait()
    assert len(app.pool.router) == 0


@pytest.fixture(autouse=True)
def _drained(app: AppServer) -> None:
    while not app.pool.submitted.empty():
        app.pool.submitted.get_nowait()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [hanging, unstarted])
def test_a_client_that_leaves_causes_exactly_one_abort(app: AppServer, stream: bool, script: object) -> None:
    app.pool.script = script  # type: ignore[assignment]
    raw = send(app, {"stream": stream, "n": 2})
    request = app.pool.submitted.get(timeout=20)
    if stream and script is hanging:
        while b'"content":"x"' not in raw.recv(65536):
            pass
    raw.close()
    check_one_abort(app, request)


def test_reset_connection_is_a_client_that_left(app: AppServer) -> None:
    app.pool.script = hanging  # type: ignore[assignment]
    raw = send(app, {"stream": True})
    request = app.pool.submitted.get(timeout=20)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    raw.close()
    check_one_abort(app, request)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_ended_is_never_aborted(app: AppServer, http: httpx.Client, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    for _ in range(5):
        assert http.post(CHAT, json=body).status_code == 200
    app.call(lambda: None)
    assert app.pool.aborts.empty()


def test_dead_worker_ends_open_streams_with_an_error(app: AppServer) -> None:
    app.pool.script = hanging  # type: ignore[assignment]
    raw = send(app, {"stream": True})
    received = b""
    while b'"content":"x"' not in received:
        received += raw.recv(65536)
    app.fail_all(RequestError(503, "the worker stopped", code="worker_lost"))
    while b"[DONE]" not in received:
        received += raw.recv(65536)
    assert b'"code":"worker_lost"' in received
    raw.close()
    app.call(lambda: None)
    assert app.pool.aborts.empty()


def test_dead_worker_before_the_first_token_is_a_503(app: AppServer, http: httpx.Client) -> None:
    app.pool.script = unstarted  # type: ignore[assignment]
    answers: queue.Queue[httpx.Response] = queue.Queue()
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
    thread = threading.Thread(target=lambda: answers.put(http.post(CHAT, json=body)))
    thread.start()
    app.pool.submitted.get(timeout=20)
    app.fail_all(RequestError(503, "the worker stopped", code="worker_lost"))
    response = answers.get(timeout=20)
    thread.join()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_a_silent_stream_gets_comments(app: AppServer) -> None:
    app.pool.script = hanging  # type: ignore[assignment]
    raw = send(app, {"stream": True})
    received = b""
    while b'"content":"x"' not in received:
        received += raw.recv(65536)
    app.call(app.generations.tick)
    app.call(app.generations.tick)
    app.call(app.generations.tick)
    while b": keep-alive\n\n" not in received:
        received += raw.recv(65536)
    raw.close()
    assert app.pool.aborts.get(timeout=20)
    assert received.count(b": keep-alive") == 1


def test_a_body_that_stops_short_is_no_request(app: AppServer, http: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", app.port)) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert http.get("/health").status_code == 200
    assert app.pool.submitted.empty()
