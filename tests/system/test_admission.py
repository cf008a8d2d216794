"""What a client sees when there is no room: a real status, never an error inside a stream that began with 200."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx

from tests.system.harness import SCRIPTED, Server

SETTINGS = (
    *SCRIPTED, "engine.scripted_step_us=2000", "scheduler.max_num_seqs=1", "scheduler.admission_wait_s=0",
    "scheduler.policy=priority",
)


def body(max_tokens: int, stream: bool, **more: object) -> dict[str, object]:
    return {"prompt": "a long story", "max_tokens": max_tokens, "stream": stream, **more}


def wait_until_running(server: Server) -> None:
    deadline = time.monotonic() + 10
    while (capacity := server.capacity())["active_requests"] != 1 or capacity["waiting_requests"]:
        assert time.monotonic() < deadline, capacity
        threading.Event().wait(0.01)


def metric(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"sparkinfer_{name} ")).split()[1])


def test_without_waiting_the_answer_is_429_at_once_unless_it_is_urgent(embedded_model: Path) -> None:
    with Server(embedded_model, *SETTINGS) as server, httpx.Client() as client:
        url = f"{server.url}/v1/completions"
        with client.stream("POST", url, json=body(1900, True)) as occupant:  # for some seconds
            assert occupant.status_code == 200
            wait_until_running(server)
            for stream in (True, False):
                response = httpx.post(url, json=body(5, stream), timeout=10)
                assert response.status_code == 429
                assert response.json()["error"]["code"] == "no_capacity"
                assert int(response.headers["retry-after"]) > 0
            assert metric(server, "admission_wait_timeouts_total") == 2
            assert httpx.post(url, json=body(5, False, priority=-1), timeout=10).status_code == 200
            assert metric(server, "preemptions_total") == 1
            wait_until_running(server)


def test_a_full_queue_is_429_and_a_wait_too_long_504(embedded_model: Path) -> None:
    """Depth and waiting are counted in requests, whatever their n."""
    settings = ("scheduler.max_num_seqs=1", "scheduler.max_queue_depth=2", "scheduler.request_timeout_s=3")
    with Server(embedded_model, *SCRIPTED, "engine.scripted_step_us=4000", *settings) as server:
        url = f"{server.url}/v1/completions"
        answers: list[httpx.Response] = []
        with httpx.stream("POST", url, json=body(1900, True), timeout=20) as occupant:
            assert occupant.status_code == 200
            wait_until_running(server)
            waits = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body(1900, False, n=3))))
            waits.start()
            deadline = time.monotonic() + 10
            while (capacity := server.capacity())["waiting_requests"] != 1:
                assert time.monotonic() < deadline, capacity
                threading.Event().wait(0.01)
            assert (capacity["active_requests"], capacity["max_queue_depth"]) == (2, 2)
            refused = httpx.post(url, json=body(5, False), timeout=10)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) > 0
            waits.join()
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (504, "request_timeout")
        assert "retry-after" not in answers[0].headers  # repeated, it would take as long
