"""Counters of several http workers, dead ones included, in one scrape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparkinfer.errors import RequestError
from workers.http_metrics import HttpMetrics, outcome_of

ROOT = Path(__file__).resolve().parent.parent.parent

WORKER = """
import sys
from workers.http_metrics import HttpMetrics
metrics = HttpMetrics(sys.argv[1])
metrics.requests.inc(3)
metrics.first_token.add(0.02)
metrics.first_token.add(1e9)
metrics.count_end("ok", None, 0.5)
sys.stdout.buffer.write(metrics.render({"free_kv_blocks": 7}))
"""


def scrape(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)
    return {f"{sample.name}{sample.labels or ''}": sample.value for family in families for sample in family.samples}


def run_worker(folder: Path) -> dict[str, float]:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", WORKER, str(folder)], env=environment, check=True, capture_output=True
    ).stdout
    return scrape(output.decode())


def test_counters_survive_their_process(tmp_path: Path) -> None:
    run_worker(tmp_path)
    values = run_worker(tmp_path)
    assert values["sparkinfer_requests_total"] == 6
    assert values["sparkinfer_requests_by_outcome_total{'outcome': 'ok'}"] == 2
    assert values["sparkinfer_time_to_first_token_seconds_count"] == 4
    assert values["sparkinfer_time_to_first_token_seconds_bucket{'le': '0.01'}"] == 0
    assert values["sparkinfer_time_to_first_token_seconds_bucket{'le': '0.025'}"] == 2
    assert values["sparkinfer_time_to_first_token_seconds_bucket{'le': '+Inf'}"] == 4
    assert values["sparkinfer_free_kv_blocks"] == 7


def test_bucket_bounds_are_inclusive_and_nothing_counts_twice() -> None:
    metrics = HttpMetrics()
    for seconds in (0.005, 0.0050001):
        metrics.first_token.add(seconds)
    metrics.hand_over()
    values = scrape(metrics.render({}).decode())
    assert values["sparkinfer_time_to_first_token_seconds_bucket{'le': '0.005'}"] == 1
    assert values["sparkinfer_time_to_first_token_seconds_count"] == 2
    assert values["sparkinfer_time_to_first_token_seconds_sum"] == pytest.approx(0.0100001)


def test_outcomes() -> None:
    outcomes = {
        (200, True): "ok", (400, False): "client_error", (429, False): "overloaded", (503, False): "overloaded",
        (503, True): "server_error", (500, True): "server_error", (504, True): "timeout",
    }  # fmt: skip
    for (status, is_accepted), expected in outcomes.items():
        error = None if status == 200 else RequestError(status, "x")
        assert outcome_of(error, is_accepted=is_accepted) == expected
