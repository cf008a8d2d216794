"""Spans of the whole service, as a collector receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.system.harness import SCRIPTED, Server

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 8, "ignore_eos": True, "stream": True}


class Collector:
    """Takes what is exported to it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    raise AssertionError("not asked for")
                for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}/v1/traces"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_request_is_a_span_with_one_for_each_stage(embedded_model: Path, collector: Collector) -> None:
    with Server(embedded_model, *SCRIPTED, f"server.traces_endpoint={collector.endpoint}") as server:
        headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "x-request-id": "mine"}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers=headers).status_code == 200
        assert httpx.post(f"{server.url}/v1/completions", json={}).status_code == 400
        assert server.stop() == 0
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {
        "POST /v1/chat/completions", "POST /v1/completions", "parse", "encode", "queue", "prefill", "decode",
    }  # fmt: skip
    whole = spans["POST /v1/chat/completions"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    attributes = {a.key: a.value.string_value or a.value.int_value for a in whole.attributes}
    assert attributes["sparkinfer.request_id"] == "mine"
    assert attributes["sparkinfer.outcome"] == "ok"
    assert attributes["gen_ai.usage.output_tokens"] == 8
    at = whole.start_time_unix_nano
    for name in ("parse", "encode", "queue", "prefill", "decode"):
        stage = spans[name]
        assert stage.parent_span_id == whole.span_id
        assert at == stage.start_time_unix_nano <= stage.end_time_unix_nano, name
        at = stage.end_time_unix_nano
    assert at <= whole.end_time_unix_nano
    refused = {a.key: a.value.string_value for a in spans["POST /v1/completions"].attributes}
    assert refused["sparkinfer.outcome"] == "client_error"


def test_a_collector_that_is_gone_costs_no_request(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "server.traces_endpoint=http://127.0.0.1:9/v1/traces") as server:
        assert httpx.post(f"{server.url}/v1/chat/completions", json=BODY).text.endswith("data: [DONE]\n\n")
        assert server.stop() == 0
