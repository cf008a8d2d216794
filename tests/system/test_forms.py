"""The embedded model itself, at temperature 1, under schemas and forced calls: a few of what ops/bench counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from tests.system.harness import Server

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["person", "place", None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,6}$"}, "minItems": 1, "maxItems": 2},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
    },
    "required": ["name", "kind", "tags", "year"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "save", "parameters": SCHEMA}}]
SCHEMA_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
NUM_ANSWERS = 4


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def ask(client: OpenAI, seed: int, **fields: Any) -> Any:
    messages = [{"role": "user", "content": f"Something about number {seed}."}]
    body = {"model": "m", "messages": messages, "max_tokens": 300, "temperature": 1, "seed": seed} | fields
    return client.chat.completions.create(**body).choices[0]


def test_answers_follow_their_schema(client: OpenAI) -> None:
    with ThreadPoolExecutor(NUM_ANSWERS) as pool:
        choices = list(pool.map(lambda i: ask(client, i, response_format=SCHEMA_FORMAT), range(NUM_ANSWERS)))
    for choice in choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_forced_calls_follow_their_schema(client: OpenAI) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    with ThreadPoolExecutor(NUM_ANSWERS) as pool:
        choices = list(pool.map(lambda i: ask(client, i, **fields), range(NUM_ANSWERS)))
    for choice in choices:
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "save")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_other_forms(client: OpenAI) -> None:
    assert ask(client, 1, extra_body={"guided_choice": ["yes", "no"]}).message.content in ("yes", "no")
    assert ask(client, 2, extra_body={"guided_regex": "[A-Z]{3}-[0-9]{2}"}).message.content[3] == "-"
    grammar = 'start: "(" start ")" | "x"'
    content = ask(client, 3, max_tokens=40, extra_body={"guided_grammar": grammar}).message.content
    assert set(content) <= set("(x)")
