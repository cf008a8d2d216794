"""Clients that hang up: the work stops at once, streaming or not, and its memory is free again."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from tests.system.harness import Server


def post(server: Server, body: dict[str, object]) -> socket.socket:
    payload = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


def wait_for(server: Server, field: str, value: int) -> None:
    deadline = time.monotonic() + 10
    while server.capacity()[field] != value:
        assert time.monotonic() < deadline, server.capacity()
        threading.Event().wait(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_hanging_up_cancels(scripted_server: Server, stream: bool, n: int) -> None:
    wait_for(scripted_server, "active_requests", 0)
    free_blocks = scripted_server.capacity()["free_kv_blocks"]
    connection = post(scripted_server, {"prompt": "a long story", "max_tokens": 1900, "stream": stream, "n": n})
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    wait_for(scripted_server, "active_requests", 1)
    connection.close()
    # 1900 tokens at 2 ms each would run on for about 4 s; the deadline of a cancelled one is the next step
    wait_for(scripted_server, "active_requests", 0)
    assert scripted_server.capacity()["free_kv_blocks"] == free_blocks


def test_hanging_up_while_queued(scripted_server: Server) -> None:
    """More requests than sequences fit: those that wait can be cancelled too."""
    wait_for(scripted_server, "active_requests", 0)
    connections = [post(scripted_server, {"prompt": f"{i}", "max_tokens": 1900, "stream": True}) for i in range(80)]
    wait_for(scripted_server, "active_requests", 80)
    assert scripted_server.capacity()["waiting_requests"] > 0
    for connection in connections:
        connection.close()
    wait_for(scripted_server, "active_requests", 0)


def test_a_client_that_stops_reading_does_not_stop_others(scripted_server: Server) -> None:
    silent = post(scripted_server, {"prompt": "nobody reads this", "max_tokens": 1900, "stream": True})
    reader = post(scripted_server, {"prompt": "somebody reads this", "max_tokens": 50, "stream": True})
    data = b""
    while b"[DONE]" not in data:
        chunk = reader.recv(1 << 16)
        assert chunk
        data += chunk
    silent.close()
    reader.close()
