"""Requests as other clients and proxies send them, byte by byte."""

from __future__ import annotations

import json
import socket

import pytest

from tests.api.app_server import AppServer

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
CHAT = b"POST /v1/chat/completions"


def post(version: bytes = b"HTTP/1.1", body: bytes = BODY, target: bytes = CHAT, extra: bytes = b"") -> bytes:
    return b"%s %s\r\nhost: x\r\ncontent-length: %d\r\n%s\r\n%s" % (target, version, len(body), extra, body)


def talk(app: AppServer, *parts: bytes) -> bytes:
    """Send `parts` and read to the end."""
    with socket.create_connection(("127.0.0.1", app.port), timeout=20) as client:
        for part in parts:
            client.sendall(part)
        received = b""
        while chunk := client.recv(1 << 16):
            received += chunk
    return received


CLOSE = b"connection: close\r\n"
ANSWERED = {
    "trailing slash": post(target=CHAT + b"/", extra=CLOSE),
    "query": post(target=CHAT + b"?beta=true&x=%ff", extra=CLOSE),
    "absolute target": post(target=b"POST http://other.example/v1/chat/completions", extra=CLOSE),
    "1.0": post(b"HTTP/1.0"),
    "1.0 stream": post(b"HTTP/1.0", STREAM),
    "content type": post(extra=CLOSE + b"content-type: application/x-www-form-urlencoded\r\n"),
    "identity": post(extra=CLOSE + b"content-encoding: identity\r\naccept-encoding: gzip, br\r\n"),
    "chunked": b"%s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (CHAT, CLOSE, len(BODY), BODY),
}


@pytest.mark.parametrize("request_bytes", ANSWERED.values(), ids=ANSWERED)
def test_answered(app: AppServer, request_bytes: bytes) -> None:
    head, _, body = talk(app, request_bytes).partition(b"\r\n\r\n")
    assert b" 200 OK" in head.partition(b"\r\n")[0]
    assert b"chat.completion" in body


def test_body_after_a_promise(app: AppServer) -> None:
    """Expect: 100-continue, as curl sends it with a long body."""
    head, _, body = post(extra=CLOSE + b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", app.port), timeout=20) as client:
        client.sendall(head + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert b" 200 OK" in client.recv(1 << 16)


def test_pipelined_requests_are_answered_in_order(app: AppServer) -> None:
    received = talk(app, post() + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.index(b"chat.completion") < received.index(b'{"status":"ok"}')


REFUSED = {
    "no version": (b"GET /health\r\n\r\n", b"400"),
    "not http": (b"\x16\x03\x01\x02\x00\x01", b"400"),
    "no body": (b"%s HTTP/1.1\r\nhost: x\r\n%s\r\n" % (CHAT, CLOSE), b"400"),
    "two lengths": (b"%s HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab" % CHAT, b"400"),
    "length and chunks": (
        b"%s HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n%s\r\n0\r\n\r\n"
        % (CHAT, CLOSE), b"400",
    ),
    "v1 twice": (post(target=b"POST /v1/v1/chat/completions", extra=CLOSE), b"404"),
    "trace": (b"TRACE /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"405"),
}  # fmt: skip


@pytest.mark.parametrize(("request_bytes", "status"), REFUSED.values(), ids=REFUSED)
def test_refused(app: AppServer, request_bytes: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", app.port), timeout=20) as client:
        client.sendall(request_bytes)
        assert client.recv(1 << 16).partition(b"\r\n")[0].split()[1:2] == [status]


def test_a_body_that_ends_early_is_the_clients_error(app: AppServer) -> None:
    request = b"%s HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n%s" % (CHAT, BODY)
    with socket.create_connection(("127.0.0.1", app.port), timeout=20) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        assert b" 400 " in client.recv(1 << 16).partition(b"\r\n")[0]
