"""Gaps of 16 streams while schemas are compiled that are meant to take for ever, one at a time.

    python -m ops.bench.grammar_bombs [--step-us 10000]

Measured through the whole server, with a scripted engine.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import httpx
import numpy as np

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from tests.system.harness import Server

LETTERS = {"type": "regex", "regex": "[a-z ]{1,100000}"}


def stream(url: str, fields: dict[str, Any], tokens: int, gaps: list[float]) -> None:
    """Read one stream to its end; gaps: seconds between its pieces."""
    question = [{"role": "user", "content": "one two three four " * 8}]
    body = {"messages": question, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body | fields, timeout=120) as response:
        last_at = None
        for line in response.iter_lines():
            if line.startswith("data: {"):
                now = time.monotonic()
                if last_at is not None:
                    gaps.append(now - last_at)
                last_at = now


def streams(url: str, fields: list[dict[str, Any]], tokens: int) -> list[list[float]]:
    gaps: list[list[float]] = [[] for _ in fields]
    threads = [threading.Thread(target=stream, args=(url, f, tokens, g)) for f, g in zip(fields, gaps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gaps


def scripted_server(step_us: int) -> Server:
    model = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    return Server(model, "engine.runner=scripted", f"engine.scripted_step_us={step_us}", "scheduler.max_num_seqs=64")


def bombs(step_us: int) -> None:
    level: dict[str, Any] = {"type": "null"}
    for i in range(16):
        level = {"oneOf": [{"type": "object", "properties": {f"p{i}{j}": level}} for j in range(3 if i > 10 else 1)]}
    schema = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": level}}
    attacks = {
        "1 MB regex": {"type": "regex", "regex": "a|b" * 330_000},
        "1 MB of (": {"type": "regex", "regex": "(" * 1_000_000},
        "16 levels of oneOf": schema,
    }
    with scripted_server(step_us) as server:
        streams(server.url, [{"response_format": LETTERS}], 5)
        for name in ("nothing", *attacks, "nothing"):
            answers: list[str] = []
            attacker = threading.Thread(target=attack, args=(server.url, attacks.get(name), answers))
            attacker.start()
            gaps = np.concatenate(streams(server.url, [{}] * 16, 700)) * 1e3
            attacker.join()
            print(f"{name:20} gaps p50 {np.median(gaps):.2f} ms, p99 {np.percentile(gaps, 99):.2f} ms, "
                  f"max {gaps.max():.1f} ms; {', '.join(answers)}")


def attack(url: str, response_format: dict[str, Any] | None, answers: list[str]) -> None:
    if response_format is not None:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "response_format": response_format}
        started_at = time.monotonic()
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
        answers.append(f"{response.status_code} after {time.monotonic() - started_at:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-us", type=int, default=10_000)
    bombs(parser.parse_args().step_us)
