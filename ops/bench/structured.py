"""Does a small model at temperature 1 keep to a schema and to a forced tool choice? Every answer is validated.

    python ops/bench/structured.py [--requests 200] [--streams 16] [--set section.key=value ...]

Starts the service with the default model and asks it with random prompts: half under a JSON schema, half with a tool
that must be called, each streamed and whole by turns. Prints how many answers were valid, and the tokens they took.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
from openai import OpenAI

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from tests.system.harness import Server

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1, "maxLength": 40},
        "kind": {"enum": ["person", "place", "thing", None]},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "year": {"type": "integer", "minimum": 1000, "exclusiveMaximum": 2100},
        "tags": {
            "type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,12}$"}, "minItems": 1, "maxItems": 4,
        },
        "where": {
            "anyOf": [
                {"type": "null"},
                {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                 "required": ["x", "y"], "additionalProperties": False},
            ]
        },
    },
    "required": ["title", "kind", "score", "year", "tags", "where"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "save_note", "description": "Keep a note", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "set_timer", "description": "Start a timer", "parameters": {
        "type": "object", "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 90},
                                         "label": {"type": "string", "maxLength": 30}},
        "required": ["minutes"], "additionalProperties": False}}},
]  # fmt: skip
WORDS = ["moon", "river", "engine", "seven", "forgotten", "window", "tax", "Paris", "cheese", "why", "explain", "write"]
MAX_TOKENS = 900


def ask(client: OpenAI, number: int, is_forced: bool) -> tuple[str, int]:
    """What is wrong with the answer to prompt `number` ("" for nothing), and its tokens."""
    words = " ".join(random.Random(number).choices(WORDS, k=8))
    wish: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
    if is_forced:
        wish = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    stream = number % 2 == 1
    answer: Any = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": words}], max_tokens=MAX_TOKENS, temperature=1, seed=number,
        stream=stream, **wish,
    )  # fmt: skip
    name, text, num_tokens = read_stream(answer) if stream else read_whole(answer)
    schema = next((t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == name), SCHEMA)
    if is_forced and not name:
        return f"no call: {text[:100]!r}", num_tokens
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__}: {str(error)[:100]} in {text[:200]!r}", num_tokens
    return "", num_tokens


def read_whole(answer: Any) -> tuple[str, str, int]:
    """Function's name, arguments or content, tokens."""
    message = answer.choices[0].message
    tokens = answer.usage.completion_tokens
    if message.tool_calls:
        return message.tool_calls[0].function.name, message.tool_calls[0].function.arguments, tokens
    return "", message.content or "", tokens


def read_stream(chunks: Any) -> tuple[str, str, int]:
    """The same of a stream."""
    name, text, tokens = "", "", 0
    for chunk in chunks:
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                text += call.function.arguments or ""
    return name, text, tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    args = parser.parse_args()
    model = resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
    failures = 0
    with Server(model, "model.max_model_len=2048", f"scheduler.max_num_seqs={args.streams}", *args.set) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)
        for kind, is_forced in (("json_schema", False), ("tool_choice required", True)):
            start = time.monotonic()
            with ThreadPoolExecutor(args.streams) as pool:
                results = list(pool.map(functools.partial(ask, client, is_forced=is_forced), range(args.requests)))
            problems = [problem for problem, _ in results if problem]
            tokens = sum(num_tokens for _, num_tokens in results)
            seconds = time.monotonic() - start
            print(f"{kind}: {len(results) - len(problems)} of {len(results)} valid, {tokens} tokens in {seconds:.0f} s")
            for problem in problems[:5]:
                print("  ", problem)
            failures += len(problems)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
