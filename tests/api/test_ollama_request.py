"""Bodies of Ollama's API and what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.api.ollama.request import parse_ollama_chat, parse_ollama_generate
from sparkinfer.request import JsonObjectFormat, JsonSchemaFormat, Request, TextPrompt
from tests.api.app_server import INFO
from tests.api.parsing import new_ids, refused

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d",
                                         "parameters": {"type": "object", "properties": {}}}}  # fmt: skip


def chat_request(**fields: Any) -> Request:
    return parse_ollama_chat(CHAT | fields, INFO, new_ids()).requests[0]


def messages(*given: dict[str, Any]) -> Any:
    return chat_request(messages=list(given)).prompt.messages


def test_options() -> None:
    request = chat_request(options={
        "num_predict": 5, "temperature": 0.2, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.1, "seed": 7,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["a", "b"], "num_ctx": 4096, "num_gpu": 1,
    })  # fmt: skip
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (5, 0.2, 3, 0.5)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.1, 1.1, 7)
    assert (sampling.presence_penalty, sampling.frequency_penalty, request.stop) == (0.1, 0.2, ("a", "b"))


@pytest.mark.parametrize("limit", [-1, -2, 0])
def test_no_limit(limit: int) -> None:
    sampling = chat_request(options={"num_predict": limit, "seed": -1, "top_k": -1}).sampling
    assert (sampling.max_tokens, sampling.seed, sampling.top_k) == (INFO.max_output_tokens, None, 0)


@pytest.mark.parametrize(
    ("think", "kwargs"),
    [(None, {}), (True, {"enable_thinking": True}), (False, {"enable_thinking": False}),
     ("high", {"enable_thinking": True, "reasoning_effort": "high"})],
)  # fmt: skip
def test_think(think: Any, kwargs: dict[str, Any]) -> None:
    assert chat_request(think=think).prompt.template_kwargs == kwargs


def test_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    found = [chat_request(format=given).output_format for given in (None, "", "json")]
    assert found == [None, None, JsonObjectFormat()]
    whole = chat_request(format=schema).output_format
    assert isinstance(whole, JsonSchemaFormat)
    assert json.loads(whole.schema) == schema


def test_results_find_their_calls() -> None:
    def call(name: str, **extra: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {"a": 1}}} | extra

    found = messages(
        {"role": "user", "content": "q"},
        {"role": "assistant", "thinking": "t", "tool_calls": [call("f"), call("g"), call("f", id="mine")]},
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2", "tool_call_id": "mine"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4", "tool_name": "lost"},
    )
    ids = [c.id for c in found[1].tool_calls]
    assert (ids, found[1].reasoning, found[1].tool_calls[0].arguments) == (["call_1", "call_2", "mine"], "t", '{"a":1}')
    assert [(m.content, m.name, m.tool_call_id) for m in found[2:]] == [
        ("1", "g", "call_2"), ("2", "f", "mine"), ("3", "f", "call_1"), ("4", "lost", "call_0"),
    ]  # fmt: skip


def test_generate() -> None:
    def generate(**fields: Any) -> Any:
        return parse_ollama_generate({"model": "tiny", "prompt": "p"} | fields, INFO, new_ids()).requests[0].prompt

    assert [(m.role, m.content) for m in generate(system="s").messages] == [("system", "s"), ("user", "p")]
    assert generate(raw=True) == TextPrompt(text="p")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"format": "xml"}, "format"),
        ({"think": "banana"}, "think"),
        ({"stream": "yes"}, "stream"),
        ({"options": []}, "options"),
        ({"options": {"num_predict": "5"}}, "options.num_predict"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    assert refused(lambda: chat_request(**fields)).param == param


@pytest.mark.parametrize("key", ["suffix", "template", "context", "images"])
def test_what_generate_cannot(key: str) -> None:
    value = "x" if key in ("suffix", "template") else [1]
    body = {"model": "tiny", "prompt": "p", key: value}
    assert refused(lambda: parse_ollama_generate(body, INFO, new_ids())).param == key
