"""/metrics of the whole service: what grows, what survives, and what a scrape costs."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.system.harness import SCRIPTED, Server

BODY = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 8, "ignore_eos": True}


def scrape(server: Server) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    return {
        f"{sample.name}{sample.labels or ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape_once_counted(server: Server, num_requests: int) -> dict[str, float]:
    """Each worker hands its latencies over once a second."""
    deadline = time.monotonic() + 20
    while (values := scrape(server))["sparkinfer_request_duration_seconds_count"] < num_requests:
        assert time.monotonic() < deadline, values
        threading.Event().wait(0.1)
    return values


def counters(values: dict[str, float]) -> dict[str, float]:
    return {
        name: value for name, value in values.items()
        if name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket")) and "process_cpu" not in name
    }  # fmt: skip


def assert_none_went_down(before: dict[str, float], after: dict[str, float]) -> None:
    assert {name for name, value in counters(before).items() if after.get(name, -1) < value} == set()


def kill_and_wait(server: Server, name: str) -> None:
    """Until all processes are there again and a request would be taken."""
    num_workers = len(server.workers())
    process = server.worker(name)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    deadline = time.monotonic() + 30
    while len(server.workers()) < num_workers:
        assert time.monotonic() < deadline, server.log
        threading.Event().wait(0.05)
    server.wait_ready_again()


def test_counters_outlive_their_workers(embedded_model: Path) -> None:
    overrides = (*SCRIPTED, "server.http_workers=2", "server.vllm_metric_names=true")
    with Server(embedded_model, *overrides) as server:
        for i in range(20):
            body = BODY | {"stream": i % 2 == 0}
            assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20).status_code == 200
        before = scrape_once_counted(server, 20)
        assert before["sparkinfer_requests_total"] == 20
        assert before["sparkinfer_tokens_total{'kind': 'completion'}"] == 160
        assert before["sparkinfer_engine_tokens_generated_total"] == 160
        for name in ("queue", "prefill", "decode", "request_duration"):
            assert before[f"sparkinfer_{name}_seconds_count"] == 20
        assert before["sparkinfer_time_to_first_token_seconds_count"] == 20
        assert before["sparkinfer_process_cpu_seconds_total{'worker': 'gpu-0'}"] > 0
        assert 0 < before["sparkinfer_process_uptime_seconds{'worker': 'http-0'}"] < before["sparkinfer_uptime_seconds"]
        for name in ("http-0", "http-1", "text-0", "gpu-0"):
            kill_and_wait(server, name)
            after = scrape(server)
            assert_none_went_down(before, after)
            before = after
        assert before["sparkinfer_process_restarts_total{'worker': 'gpu-0'}"] == 1
        assert before["sparkinfer_uptime_seconds"] > 1


def test_scanners_make_no_labels_and_scrapes_are_cheap(scripted_server: Server) -> None:
    with httpx.Client(base_url=scripted_server.url, timeout=20) as client:
        for i in range(1500):
            client.get(f"/{i:x}/wp-login.php?x={i}")
        stop = threading.Event()

        def stream() -> None:
            while not stop.is_set():
                body = BODY | {"stream": True, "max_tokens": 200}
                httpx.post(f"{scripted_server.url}/v1/chat/completions", json=body, timeout=20)

        thread = threading.Thread(target=stream)
        thread.start()
        try:
            seconds = []
            for _ in range(10):
                started_at = time.perf_counter()
                text = client.get("/metrics").text
                seconds.append(time.perf_counter() - started_at)
        finally:
            stop.set()
            thread.join()
    assert "wp-login" not in text
    assert len(text) < 64 << 10
    assert len([line for line in text.splitlines() if "http_responses_total{" in line]) < 100
    print(f"scrapes: {min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f} ms")
