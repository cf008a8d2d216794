"""Prometheus metrics of the HTTP side, summed over all http workers, past ones included, at scrape time.

prometheus_client's multiprocess mode (PROMETHEUS_MULTIPROC_DIR, set before this module is imported) keeps the values
in files that outlive a worker. A file is named after the worker instead of its pid: the next generation goes on where
the last one stopped, so that no counter ever goes down and there are never more files than workers. Labels are
bounded: route templates and outcomes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from ipc.messages import Finished
from sparkinfer.api.reply import FINISH_REASONS
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason
from workers.http_processes import ProcessSample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds. From a decode step of a small model to a prefill of a very long prompt.
_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_QUEUE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_ITL_BUCKETS = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 10)
_E2E_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


OUTCOMES = (
    "ok", "client_error", "overloaded", "alloc_failed", "timeout", "cancelled", "server_error", "invalid_tool_output",
    "invalid_json_output",
)  # fmt: skip


class _BulkHistogram(Histogram):
    """A Histogram that takes observations counted elsewhere."""

    def add_counts(self, counts: list[int], total: float) -> None:
        """counts[i]: new observations of bucket i (the last one is +Inf); total: their sum."""
        for bucket, count in zip(self._buckets, counts):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class LatencyCounter:
    """Observations of one histogram, counted in plain integers and handed over in bulk.

    An observation costs 0.2 us where Histogram.observe costs several in multiprocess mode, once per token and stream.
    """

    def __init__(self, histogram: _BulkHistogram, bounds: tuple[float, ...]) -> None:
        self._histogram = histogram
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._total += seconds

    def hand_over(self) -> None:
        """Move what was counted to the histogram: about once a second, and before a scrape."""
        if any(self._counts):
            self._histogram.add_counts(self._counts, self._total)
            self._counts = [0] * len(self._counts)
            self._total = 0.0


class HttpMetrics:
    """All metrics of one http worker. The event loop's thread only."""

    def __init__(self, worker: str = "http-0", files_dir: str | None = None) -> None:
        """files_dir: what PROMETHEUS_MULTIPROC_DIR is set to, None outside of multiprocess mode."""
        if files_dir is not None:
            values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]  # unannotated
        self._registry = CollectorRegistry()
        self._files_dir = files_dir
        self.requests = self._counter("requests", "Generation requests received")
        self.streaming = self._counter("requests_streaming", "Generation requests that asked for a stream")
        self.responses = self._counter("http_responses", "HTTP responses", "route", "status")
        self._outcomes = self._counter("requests_by_outcome", "Generation requests by how they ended", "outcome")
        self._tokens = self._counter("tokens", "Tokens of answered requests", "kind")
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)  # at zero from the start, so that a rate sees the first one
        for kind in ("prompt", "completion"):
            self._tokens.labels(kind)
        self._choices = self._counter("choices", "Choices by how they ended", "finish_reason")
        self.skipped_tools = self._counter("requests_with_skipped_tools", "Requests with tools nobody here can run")
        self.cut_off = self._counter("clients_cut_off", "Clients that stopped reading their stream")
        self.first_token = self._latency("time_to_first_token_seconds", "Request read to first text", _TTFT_BUCKETS)
        self.inter_token = self._latency("inter_token_latency_seconds", "Between writes of a stream", _ITL_BUCKETS)
        self.duration = self._latency("request_duration_seconds", "Request read to end of answer", _E2E_BUCKETS)
        self._queue = self._latency("queue_seconds", "Accepted by the engine to its first step", _QUEUE_BUCKETS)
        self._prefill = self._latency("prefill_seconds", "First step to first token", _TTFT_BUCKETS)
        self._decode = self._latency("decode_seconds", "First token to last", _E2E_BUCKETS)
        self._latencies = (
            self.first_token, self.inter_token, self.duration, self._queue, self._prefill, self._decode,
        )  # fmt: skip

    def count_choice(self, event: Finished) -> None:
        """One choice ended well."""
        self._choices.labels(FINISH_REASONS[FinishReason(event.finish_reason)]).inc()
        self._queue.add(event.queue_ms / 1e3)
        if event.ttft_ms:
            self._prefill.add(max(0.0, event.ttft_ms - event.queue_ms) / 1e3)
            self._decode.add(max(0.0, event.generation_ms - event.ttft_ms) / 1e3)

    def count_end(self, outcome: str, usage: Usage | None, seconds: float) -> None:
        """One generation request ended."""
        self._outcomes.labels(outcome).inc()
        self.duration.add(seconds)
        if usage is not None:
            self._tokens.labels("prompt").inc(usage.prompt_tokens)
            self._tokens.labels("completion").inc(usage.completion_tokens)

    def hand_over(self) -> None:
        """Publish the latencies counted so far."""
        for latency in self._latencies:
            latency.hand_over()

    def render(self, gauges: Mapping[str, float], processes: Sequence[ProcessSample]) -> str:
        """The text of GET /metrics: every http worker's counters, then the engine's numbers, then the processes.

        gauges: by name; those that end in _total are counters.
        """
        self.hand_over()
        registry = self._registry
        if self._files_dir is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, self._files_dir)  # type: ignore[no-untyped-call]  # unannotated
        lines = [generate_latest(registry).decode()]
        for name, value in gauges.items():
            lines.append(f"# TYPE sparkinfer_{name} {_kind(name)}\nsparkinfer_{name} {value:.10g}\n")
        lines += _process_lines(processes)
        return "".join(lines)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"sparkinfer_{name}", documentation, labels, registry=self._registry)

    def _latency(self, name: str, documentation: str, bounds: tuple[float, ...]) -> LatencyCounter:
        histogram = _BulkHistogram(f"sparkinfer_{name}", documentation, registry=self._registry, buckets=bounds)
        return LatencyCounter(histogram, bounds)


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _process_lines(processes: Sequence[ProcessSample]) -> Iterator[str]:
    columns: dict[str, Sequence[float]] = {
        "process_up": [int(p.is_up) for p in processes],
        "process_cpu_seconds_total": [p.cpu_seconds for p in processes],
        "process_resident_bytes": [p.resident_bytes for p in processes],
        "process_restarts_total": [p.restarts for p in processes],
        "process_heartbeat_age_seconds": [round(p.heartbeat_age_s, 3) for p in processes],
        "process_uptime_seconds": [round(p.uptime_s, 3) for p in processes],
    }
    for name, column in columns.items():
        yield f"# TYPE sparkinfer_{name} {_kind(name)}\n"
        for process, value in zip(processes, column):
            yield f'sparkinfer_{name}{{worker="{process.name}"}} {value}\n'


def outcome_of(error: RequestError | None, *, is_accepted: bool) -> str:
    """One of OUTCOMES, for an ended request. A 503 before acceptance is overload, after it a fault of ours."""
    if error is None:
        return "ok"
    if error.status == 502 and error.code in OUTCOMES:  # output that its own schema refuses
        return error.code
    if error.code == "out_of_memory":
        return "alloc_failed"
    if error.status == 429 or (error.status == 503 and not is_accepted):
        return "overloaded"
    if error.status == 504:
        return "timeout"
    return "client_error" if error.status < 500 else "server_error"
