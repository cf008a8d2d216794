"""SIGTERM and SIGINT: idle, busy, and twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.system.harness import SCRIPTED, Server, is_alive
from tests.system.streams import Outcome, run_streams


def in_thread(url: str, count: int, max_tokens: int) -> tuple[threading.Thread, list[Outcome]]:
    outcomes: list[Outcome] = []

    def run() -> None:
        outcomes.extend(asyncio.run(run_streams(url, count, max_tokens)))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcomes


def wait_active(server: Server, count: int) -> None:
    deadline = time.monotonic() + 30
    while server.capacity()["active_requests"] < count:
        assert time.monotonic() < deadline, server.log
        threading.Event().wait(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_exits_clean(embedded_model: Path, number: int) -> None:
    with Server(embedded_model, *SCRIPTED) as server:
        processes = server.workers()
        server.signal(number)
        assert server.wait() == 0
        assert not any(map(is_alive, processes))
        assert list(server.run_dir.iterdir()) == []
        assert "Traceback" not in server.log


def test_busy_server_finishes_streams_and_refuses_new_ones(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=10000") as server:
        thread, outcomes = in_thread(server.url, 4, 150)
        wait_active(server, 4)
        with httpx.Client(timeout=10) as client:  # a connection from before the signal
            assert client.get(f"{server.url}/health").status_code == 200
            server.signal(signal.SIGTERM)
            deadline = time.monotonic() + 5
            while True:
                response = client.post(f"{server.url}/v1/completions", json={"prompt": "late", "max_tokens": 1})
                if response.status_code == 503 or time.monotonic() > deadline:
                    break
            assert response.status_code == 503
            assert "retry-after" in response.headers
        thread.join(60)
        assert [o.finishes for o in outcomes] == [["length"]] * 4
        assert all(o.done for o in outcomes)
        assert server.wait() == 0


def test_second_signal_stops_at_once(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=100000", "server.drain_grace_s=0") as server:
        thread, outcomes = in_thread(server.url, 2, 1000)
        wait_active(server, 2)
        processes = server.workers()
        server.signal(signal.SIGTERM)
        threading.Event().wait(0.3)
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        thread.join(30)
        assert all(not o.done for o in outcomes)
        assert not any(map(is_alive, processes))


def test_streams_beyond_the_grace_end_with_an_error(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=100000", "server.drain_grace_s=1") as server:
        thread, outcomes = in_thread(server.url, 2, 1000)
        wait_active(server, 2)
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        thread.join(30)
        assert [o.num_ends for o in outcomes] == [1, 1]
        assert all(o.errors for o in outcomes)


HALF_BODY = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("half", [HALF_BODY, b"GET /hea"])
def test_half_sent_requests_do_not_hold_the_server(embedded_model: Path, half: bytes) -> None:
    with Server(embedded_model, *SCRIPTED, "server.drain_grace_s=0") as server, contextlib.ExitStack() as connections:
        for _ in range(3):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(half)
        threading.Event().wait(0.2)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
