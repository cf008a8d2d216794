"""TLS, a unix socket and a path prefix on the whole service, across the death of the worker that serves them."""

from __future__ import annotations

import signal
import ssl
import threading
import time
from pathlib import Path

import httpx

from tests.certificates import make_certificate
from tests.system.harness import SCRIPTED, Server

BODY = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 4, "stream": True}


def answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.post(url, json=BODY, timeout=10).text.endswith("data: [DONE]\n\n")
    except httpx.TransportError:
        return False


def wait_answer(client: httpx.Client, url: str, server: Server) -> None:
    deadline = time.monotonic() + 30
    while not answers(client, url):
        assert time.monotonic() < deadline, server.log
        threading.Event().wait(0.05)


def test_every_socket_comes_back(embedded_model: Path, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    path = tmp_path / "api.sock"
    overrides = (
        f"server.tls_cert={cert}", f"server.tls_key={key}", f"server.unix_socket={path}", "server.path_prefix=/llm",
    )  # fmt: skip
    with Server(embedded_model, *SCRIPTED, *overrides) as server:
        assert f"READY  https://127.0.0.1:{server.port}/llm" in server.log
        url = f"https://127.0.0.1:{server.port}/llm/v1/chat/completions"
        context = ssl.create_default_context(cafile=cert)
        with (
            httpx.Client(verify=context) as tls,
            httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as unix,
        ):
            process = server.worker("http-0")
            for is_second in (False, True):
                wait_answer(tls, url, server)
                wait_answer(unix, "http://any/llm/v1/chat/completions", server)
                if not is_second:
                    process.send_signal(signal.SIGKILL)
                    process.wait(10)
        assert server.stop() == 0
