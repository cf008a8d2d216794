"""Counters of several http workers, dead ones included, in one scrape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ipc.messages import Finished
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, RequestId
from workers.http_metrics import OUTCOMES, HttpMetrics, outcome_of
from workers.http_processes import ProcessSample
from workers.http_vllm_names import with_vllm_names

ROOT = Path(__file__).resolve().parent.parent.parent

WORKER = """
import sys
from workers.http_metrics import HttpMetrics
metrics = HttpMetrics("http-0", sys.argv[1])
metrics.requests.inc(3)
metrics.first_token.add(0.02)
metrics.first_token.add(1e9)
metrics.count_end("ok", None, 0.5)
sys.stdout.write(metrics.render({"free_kv_blocks": 7}, []))
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
    values = scrape(metrics.render({}, []))
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
        assert expected in OUTCOMES
    for code in ("invalid_tool_output", "invalid_json_output"):
        assert outcome_of(RequestError(502, "x", code=code), is_accepted=True) == code
    assert outcome_of(RequestError(502, "x", code="other"), is_accepted=True) == "server_error"


def test_every_outcome_is_there_at_zero_from_the_start() -> None:
    values = scrape(HttpMetrics().render({}, []))
    for outcome in OUTCOMES:
        assert values[f"sparkinfer_requests_by_outcome_total{{'outcome': '{outcome}'}}"] == 0


def test_an_abrupt_end_in_the_middle_loses_nothing_counted(tmp_path: Path) -> None:
    """One file a worker, however often it is started again."""
    for i in range(1, 4):
        assert run_worker(tmp_path)["sparkinfer_requests_total"] == 3 * i
    assert {path.name for path in tmp_path.iterdir()} == {"counter_http-0.db", "histogram_http-0.db"}


def test_processes() -> None:
    supervisor = ProcessSample("supervisor", True, 2.5, 1024, 0, 0.0, 60.0)
    processes = [supervisor, ProcessSample("gpu-0", False, 0.0, 0, 3, 9.0)]
    values = scrape(HttpMetrics().render({}, processes))
    assert values["sparkinfer_process_cpu_seconds_total{'worker': 'supervisor'}"] == 2.5
    assert values["sparkinfer_process_restarts_total{'worker': 'gpu-0'}"] == 3
    assert values["sparkinfer_process_up{'worker': 'gpu-0'}"] == 0
    assert values["sparkinfer_process_uptime_seconds{'worker': 'supervisor'}"] == 60


def test_aliases_tell_the_same() -> None:
    metrics = HttpMetrics()
    usage = Usage()
    usage.add_prompt(7)
    usage.add_choice(5, 0, 10.0, 60.0)
    metrics.count_choice(Finished(RequestId(1), 0, FinishReason.STOP, 5, 0, 0, 10.0, 60.0, None, 4.0))
    metrics.count_end("ok", usage, 0.07)
    gauges = {"running_requests": 2, "waiting_requests": 1, "kv_cache_usage_ratio": 0.25, "preemptions_total": 4}
    values = scrape(with_vllm_names(metrics.render(gauges, []), "tiny"))
    label = "'model_name': 'tiny'"
    assert values[f"vllm:num_requests_running{{{label}}}"] == 2
    assert values[f"vllm:kv_cache_usage_perc{{{label}}}"] == 0.25
    assert values[f"vllm:prompt_tokens_total{{{label}}}"] == 7
    assert values[f"vllm:generation_tokens_total{{{label}}}"] == 5
    assert values[f"vllm:request_success_total{{{label}, 'finished_reason': 'stop'}}"] == 1
    assert values[f"vllm:request_queue_time_seconds_sum{{{label}}}"] == pytest.approx(0.004)
    assert values[f"vllm:request_prefill_time_seconds_sum{{{label}}}"] == pytest.approx(0.006)
    assert values[f"vllm:request_decode_time_seconds_sum{{{label}}}"] == pytest.approx(0.05)
    assert values[f"vllm:e2e_request_latency_seconds_bucket{{{label}, 'le': '+Inf'}}"] == 1
