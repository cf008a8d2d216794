"""Eight streams against a server that is started for them: OpenAI's completions, whoever serves them."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

STREAMS, NEW_TOKENS, READY_S = 8, 64, 120
# About 90 tokens for the embedded default; the number at its start keeps prompts from sharing a prefix.
PROMPT = "{} " + "The old lighthouse keeper walked down to the shore every morning to count the boats. " * 5


def http_run(command: list[str], port: int) -> tuple[float, float]:
    """Tokens per second of all streams together, and the median time to first token in seconds."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, server)
        _stream(url, 99)
        started = time.perf_counter()
        with ThreadPoolExecutor(STREAMS) as pool:
            found = list(pool.map(lambda i: _stream(url, i), range(STREAMS)))
        elapsed = time.perf_counter() - started
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return sum(tokens for tokens, _ in found) / elapsed, statistics.median(first for _, first in found)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + READY_S
    while time.monotonic() < ends_at and server.poll() is None:
        try:
            if httpx.get(f"{url}/v1/models").is_success and httpx.get(f"{url}/health").is_success and _answers(url):
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)  # it loads its model
    raise RuntimeError(f"no server at {url} within {READY_S} s")


def _answers(url: str) -> bool:
    body = {"prompt": "Hello", "max_tokens": 1}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60).is_success


def _stream(url: str, number: int) -> tuple[int, float]:
    """Tokens that came, and seconds to the first."""
    body = {"prompt": PROMPT.format(number), "max_tokens": NEW_TOKENS, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    started, first, tokens = time.perf_counter(), 0.0, 0
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event.get("choices") and event["choices"][0].get("text") and not first:
                first = time.perf_counter() - started
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return tokens, first
