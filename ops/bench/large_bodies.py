"""Gaps of 16 streams while one client sends bodies of half a megabyte, one after the other.

    python -m ops.bench.large_bodies [--step-us 10000]

Measured through the whole server, with a scripted engine and one HTTP process. Every body has a mistake in it that is
found last, so that none gets beyond the HTTP process.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

import httpx
import numpy as np

from ops.bench.grammar_bombs import scripted_server, streams

NUM_STREAMS, NUM_TOKENS = 16, 400
MISTAKE = {"temperature": "hot"}


def bodies() -> dict[str, dict[str, Any]]:
    field = {"type": "string", "description": "a field of this function"}
    parameters = {"type": "object", "properties": {f"field{i}": field for i in range(10)}}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "description": "words", "parameters": parameters}}
        for i in range(500)
    ]
    question = [{"role": "user", "content": "x"}]
    call = {"id": "a", "type": "function", "function": {"name": "f0", "arguments": json.dumps({"x": [[]] * 120_000})}}
    answer = {"role": "tool", "tool_call_id": "a", "content": ""}
    called = [*question, {"role": "assistant", "tool_calls": [call]}, answer]
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [[]] * 120_000}}}
    return {
        "a text": {"messages": [{"role": "user", "content": "word " * 100_000}]},
        "5,000 messages": {"messages": [{"role": "user", "content": "word " * 12}] * 5000},
        "500 tools": {"messages": question, "tools": tools},
        "a call with 120,000 arrays": {"messages": called, "tools": tools[:1]},
        "a schema with 120,000 arrays": {"messages": question, "response_format": schema},
    }


def send(url: str, body: bytes, until: threading.Event, times: list[float]) -> None:
    """Send `body` again and again."""
    with httpx.Client(timeout=60) as client:
        while not until.is_set():
            started_at = time.perf_counter()
            response = client.post(f"{url}/v1/chat/completions", content=body)
            assert "temperature" in response.text, response.text[:200]
            times.append(time.perf_counter() - started_at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-us", type=int, default=10_000)
    with scripted_server(parser.parse_args().step_us) as server:
        streams(server.url, [{}], 5)
        for name, body in {"nothing": None, **bodies()}.items():
            until, times = threading.Event(), list[float]()
            data = json.dumps((body or {}) | MISTAKE, separators=(",", ":")).encode()
            sender = threading.Thread(target=send, args=(server.url, data, until, times))
            if body is not None:
                sender.start()
            gaps = np.concatenate(streams(server.url, [{}] * NUM_STREAMS, NUM_TOKENS)) * 1e3
            until.set()
            if body is not None:
                sender.join()
            p50, p99, longest = np.percentile(gaps, [50, 99, 100])
            print(f"{name:30} {len(data) // 1000:4} kB: {len(gaps)} gaps, p50 {p50:.1f} ms, p99 {p99:.1f} ms, "
                  f"max {longest:.0f} ms; {len(times)} answered in {np.median(times or [0.0]) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
