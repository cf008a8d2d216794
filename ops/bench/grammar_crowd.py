"""What new schemas and conversations with calls wait for beside ten different bombs at once and 16 streams.

    python -m ops.bench.grammar_crowd [--step-us 10000]

Measured through the whole server, with a scripted engine.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

import httpx
import numpy as np

from ops.bench.grammar_bombs import attack, scripted_server, streams


def crowd(step_us: int, count: int = 10) -> None:
    bombs_of = {
        "1 MB regex": lambda number: {"type": "regex", "regex": "a|b" * 300_000 + str(number)},
        "overlapping oneOf": lambda number: {"type": "json_schema", "json_schema": {
            "name": "bomb", "schema": {"title": str(number)} | overlapping(20),
        }},
    }  # fmt: skip
    for name, bomb in bombs_of.items():
        with scripted_server(step_us) as server:
            usual(server.url, 0)
            answers: list[str] = []
            threads = [threading.Thread(target=attack, args=(server.url, bomb(i), answers)) for i in range(count)]
            live = threading.Thread(target=streams, args=(server.url, [{}] * 16, 1000))
            for thread in (live, *threads):
                thread.start()
            times = [timed_usual(server.url, number) for number in range(1, 40)]
            for thread in (live, *threads):
                thread.join()
            answers.sort(key=lambda text: float(text.split()[2]))
            print(f"{count} of {name}: usual requests {np.median(times) * 1e3:.0f} ms, "
                  f"longest {max(times) * 1e3:.0f} ms; {', '.join(answers)}")


def overlapping(levels: int) -> dict[str, Any]:
    """A schema whose alternatives have to be held against each other on every level."""
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for i in range(1, levels):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        defs[f"d{i}"] = {"oneOf": [below, {"type": "object", "properties": {"a": below}}]}
    return {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}


def usual(url: str, number: int) -> None:
    """By turns: a schema that nobody has asked for before, and a conversation in which a function was called."""
    words = {"type": "json_schema", "json_schema": {"name": "word", "schema": {"enum": [f"a{number}", f"b{number}"]}}}
    call = {"name": "w", "arguments": json.dumps({"city": f"Rome {number}"})}
    history = [{"role": "user", "content": "x"},
               {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
               {"role": "tool", "tool_call_id": "a", "content": "rain"}]
    tool = {"name": "w", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    body = ({"messages": history, "tools": [{"type": "function", "function": tool}]} if number % 2
            else {"messages": history[:1], "response_format": words})
    httpx.post(f"{url}/v1/chat/completions", json=body | {"max_tokens": 5}, timeout=120).raise_for_status()


def timed_usual(url: str, number: int) -> float:
    started_at = time.perf_counter()
    usual(url, number)
    return time.perf_counter() - started_at


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-us", type=int, default=10_000)
    crowd(parser.parse_args().step_us)
