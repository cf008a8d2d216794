"""Listening sockets and what arrives there: TLS, a unix socket, limits of headers and bodies, slow clients."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ipc.messages import Delta, Started, TextEvent
from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError
from sparkinfer.request import Request
from tests.api.app_server import AppServer, finished
from tests.certificates import make_certificate
from workers.http_server import make_server
from workers.http_slow_clients import CHECK_BYTES, Connections, UnreadMeter

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


def test_header_limits(app: AppServer) -> None:
    for headers in ({"x-long": "a" * 200_000}, {f"x-{i}": "a" for i in range(500)}):
        with httpx.Client() as client:
            assert client.get(app.url + "/health", headers=headers).status_code == 431
    assert httpx.get(app.url + "/health").status_code == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_tls(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with AppServer(ServerConfig(tls_cert=cert, tls_key=key)) as app:
        url = app.url.replace("http:", "https:")
        context = ssl.create_default_context(cafile=cert)
        assert httpx.post(url + CHAT, json=BODY, verify=context).json()["choices"][0]["message"]["content"] == "hi"
        with pytest.raises(httpx.TransportError):
            httpx.get(app.url + "/health")


def test_unusable_certificates_stop_the_start(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    for changes in ({"tls_cert": cert}, {"tls_cert": cert, "tls_key": cert}, {"tls_cert": "/no", "tls_key": key}):
        with pytest.raises(ConfigError, match="tls_"):
            make_server(None, dataclasses.replace(ServerConfig(), **changes))  # type: ignore[arg-type]


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with AppServer(unix_socket=str(path)), httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        text = client.post("http://any" + CHAT, json=BODY | {"stream": True}).text
        assert text.endswith("data: [DONE]\n\n")
    path.unlink(missing_ok=True)
    path.write_text("not a socket")
    for bad, message in ((path, "no socket"), (tmp_path / "missing" / "x", "no folder"), (path / "x", "no folder")):
        with pytest.raises(ConfigError, match=f"unix_socket.*{message}"):
            make_server(None, ServerConfig(), unix_socket=str(bad))  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["content-length: 1000", "transfer-encoding: chunked"])
def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    monkeypatch.setattr("workers.http_exchange.FIRST_BYTES_S", 0.2)
    monkeypatch.setattr("workers.http_exchange.BODY_TIMEOUT_S", 0.2)
    with AppServer() as app, socket.create_connection(("127.0.0.1", app.port), timeout=10) as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n1\r\n{{".encode())
        answer = client.recv(1 << 16)
        assert b" 408 " in answer.partition(b"\r\n")[0]
        assert b"did not arrive within 0.2 s" in answer


def long_answer(num_kib: int):
    def script(request: Request) -> Iterator[list[TextEvent]]:
        yield [Started(request.request_id, 1)]
        for _ in range(num_kib):
            yield [Delta(request.request_id, 0, "x" * 1024, "", 1)]
        yield [finished(request)]

    return script


def open_stream(app: AppServer, receive_buffer: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.connect(("127.0.0.1", app.port))
    body = json.dumps(BODY | {"stream": True}).encode()
    client.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
    return client


def test_a_client_that_stops_reading_is_cut_off() -> None:
    """Its request is cancelled, its connection is gone, and the others notice nothing."""
    with AppServer(ServerConfig(max_unsent_kib=8192)) as app:
        app.pool.script = long_answer(40_000)
        before = len(os.listdir("/proc/self/fd"))
        with open_stream(app, 8192) as stuck:
            app.pool.aborts.get(timeout=20)
            app.pool.script = long_answer(3000)
            answers = [httpx.post(app.url + CHAT, json=BODY | {"stream": True}).text for _ in range(2)]
            assert all(len(text) > 3_000_000 and text.endswith("data: [DONE]\n\n") for text in answers)
            stuck.settimeout(20)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while chunk := stuck.recv(1 << 20):
                    received += len(chunk)
            assert received < 20 << 20
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_client_that_reads_is_never_cut_off() -> None:
    """However long the stream: only what is unread counts, and only once it is too much."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        client.settimeout(20)
        server, address = listener.accept()
        meter = UnreadMeter(Connections(), f"{address[0]}:{address[1]}", 1 << 20)
        with client, server, contextlib.closing(meter):
            for _ in range(200):
                server.sendall(bytes(CHECK_BYTES))
                left = CHECK_BYTES
                while left:
                    left -= len(client.recv(left))
                meter.add(CHECK_BYTES)
            assert not meter.is_cut_off
            server.setblocking(False)
            num_bytes = 0
            while not meter.is_cut_off:
                with contextlib.suppress(BlockingIOError):
                    server.send(bytes(CHECK_BYTES))
                meter.add(CHECK_BYTES)
                num_bytes += CHECK_BYTES
            assert 1 << 20 <= num_bytes < 16 << 20
            server.setblocking(True)
            with pytest.raises(BrokenPipeError):
                server.sendall(b"more")
