"""OpenTelemetry spans of generations: the request, and a child for each of its stages. An optional dependency.

Written when a request has ended, from times that are known by then: the engine and the text workers do nothing for it.
Spans leave on a thread of the exporter's; when a collector does not take them they are dropped.

    POST /v1/chat/completions
        parse      request read -> given to a text worker
        encode     -> accepted by the engine (render, tokenise)
        queue      -> first step
        prefill    -> first token
        decode     -> last token, of the choice that ended first
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from workers.http_answer import Answer
from workers.http_exchange import Exchange

EXPORT_TIMEOUT_S: Final = 2.0
EXPORT_INTERVAL_MS: Final = 1000.0


class Traces:
    """Used by the event loop of one http worker."""

    def __init__(self, worker: str, processor: SpanProcessor) -> None:
        """worker: this process's name."""
        resource = Resource.create({"service.name": "sparkinfer", "service.instance.id": worker})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sparkinfer")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls, worker: str, endpoint: str) -> Traces:
        """endpoint: OTLP over HTTP, http://host:4318/v1/traces"""
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        return cls(worker, BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_INTERVAL_MS))

    def write(self, exchange: Exchange, answer: Answer | None, outcome: str) -> None:
        """A generation request has ended. A traceparent header makes it part of its client's trace."""
        now = time.monotonic()
        to_epoch_s = time.time() - now
        carrier = {"traceparent": exchange.header("traceparent")}
        span = self._tracer.start_span(
            f"{exchange.scope.method} {exchange.path}",
            self._propagator.extract(carrier),
            kind=trace.SpanKind.SERVER,
            start_time=_ns(exchange.received_at + to_epoch_s),
        )
        span.set_attributes({"sparkinfer.request_id": exchange.request_id, "sparkinfer.outcome": outcome})
        if outcome not in ("ok", "cancelled"):
            span.set_status(trace.StatusCode.ERROR)
        if answer is not None:
            usage = answer.usage
            span.set_attributes({
                "gen_ai.usage.input_tokens": usage.prompt_tokens, "gen_ai.usage.output_tokens": usage.completion_tokens,
            })  # fmt: skip
            parent = trace.set_span_in_context(span)
            for name, start, end in _stages(exchange, answer):
                child = self._tracer.start_span(name, parent, start_time=_ns(start + to_epoch_s))
                child.end(_ns(end + to_epoch_s))
        span.end(_ns(now + to_epoch_s))

    def close(self) -> None:
        """Send what is left; waits for it."""
        self._provider.shutdown()


def _stages(exchange: Exchange, answer: Answer) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) of the stages that were reached, in monotonic seconds."""
    if answer.submitted_at is None:
        return
    yield "parse", exchange.received_at, answer.submitted_at
    if answer.first_end is None:
        return
    event, ended_at = answer.first_end
    accepted_at = max(answer.submitted_at, ended_at - event.generation_ms / 1e3)
    yield "encode", answer.submitted_at, accepted_at
    started_at = accepted_at + event.queue_ms / 1e3
    yield "queue", accepted_at, started_at
    first_token_at = max(started_at, accepted_at + event.ttft_ms / 1e3)
    yield "prefill", started_at, first_token_at
    yield "decode", first_token_at, max(first_token_at, ended_at)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
