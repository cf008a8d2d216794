"""Parameters and bodies that broke other servers, over HTTP: refused with a location, or taken as documented."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.app_server import AppServer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
TEXT = {"type": "text", "text": "hi"}

# Fields of a chat body -> the param that the 400 names.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bias beyond the vocabulary": ({"logit_bias": {"99999999": -100}}, "logit_bias['99999999']"),
    "negative bias key": ({"logit_bias": {"-1": 1}}, "logit_bias['-1']"),
    "bias by word": ({"logit_bias": {"AI": -100}}, "logit_bias['AI']"),
    "huge bias": ({"logit_bias": {"5": 1e9}}, "logit_bias['5']"),
    "too many biases": ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    "temperature -.1": ({"temperature": -0.1}, "temperature"),
    "temperature 2.1": ({"temperature": 2.1}, "temperature"),
    "temperature high": ({"temperature": "high"}, "temperature"),
    "temperature true": ({"temperature": True}, "temperature"),
    "top_p 1.1": ({"top_p": 1.1}, "top_p"),
    "top_k -1": ({"top_k": -1}, "top_k"),
    "top_k 1.5": ({"top_k": 1.5}, "top_k"),
    "seed -1": ({"seed": -1}, "seed"),
    "seed 1.5": ({"seed": 1.5}, "seed"),
    "presence 2.1": ({"presence_penalty": 2.1}, "presence_penalty"),
    "frequency text": ({"frequency_penalty": "x"}, "frequency_penalty"),
    "n 0": ({"n": 0}, "n"), "n -1": ({"n": -1}, "n"), "n 9": ({"n": 9}, "n"), "n 1000": ({"n": 1000}, "n"),
    "n 1.5": ({"n": 1.5}, "n"), "n text": ({"n": "3"}, "n"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "max_completion_tokens text": ({"max_completion_tokens": "5"}, "max_completion_tokens"),
    "empty stop": ({"stop": [""]}, "stop[0]"), "five stops": ({"stop": list("abcde")}, "stop"),
    "stop number": ({"stop": 5}, "stop"),
    "logprobs 5": ({"logprobs": 5}, "logprobs"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "top_logprobs 21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "many stop tokens": ({"stop_token_ids": [1] * 100_000}, "stop_token_ids"),
    "stream text": ({"stream": "yes"}, "stream"),
    "stream_options list": ({"stream_options": []}, "stream_options"),
    "tool_choice word": ({"tool_choice": "sometimes"}, "tool_choice"),
    "tool_choice number": ({"tool_choice": 7}, "tool_choice"),
    "format text": ({"response_format": "json"}, "response_format"),
    "format bogus": ({"response_format": {"type": "bogus"}}, "response_format.type"),
    "effort": ({"reasoning_effort": "very"}, "reasoning_effort"),
    "no messages": ({"messages": []}, "messages"), "null messages": ({"messages": None}, "messages"),
    "role": ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
    "content number": ({"messages": [{"role": "user", "content": 12}]}, "messages[0].content"),
    "content null": ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    "content empty": ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    "part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text",
    ),
    "unknown part": (
        {"messages": [{"role": "user", "content": [TEXT, {"type": "smell"}]}]}, "messages[0].content[1]",
    ),
    "image in system": (
        {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, *USER]},
        "messages[0].content[0]",
    ),
    "too many messages": ({"messages": USER * 10_001}, "messages"),
    "unknown key of a message": ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
    **{
        f"image without an address {shape}": (
            {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url", **shape}]}]},
            "messages[0].content[1]",
        )
        for shape in ({}, {"image_url": None}, {"image_url": "x"}, {"image_url": {"url": 5}})
    },
    "system that was refused": ({"messages": [{"role": "system", "content": None}, *USER]}, "messages[0].content"),
    "assistant without anything": ({"messages": [*USER, {"role": "assistant"}, *USER]}, "messages[1]"),
    "tool id of a user": (
        {"messages": [{"role": "user", "content": "x", "tool_call_id": "a"}]}, "messages[0].tool_call_id",
    ),
    "result without a call": (
        {"messages": [*USER, {"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages[1].tool_call_id",
    ),
    "continued user": ({"continue_final_message": True}, "continue_final_message"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_refused_before_headers(http: httpx.Client, fields: dict[str, Any], param: str, stream: bool) -> None:
    body: dict[str, Any] = {"messages": USER, "stream": stream, **fields}
    response = http.post(CHAT, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error


TAKEN: list[dict[str, Any]] = [
    {"temperature": 0}, {"temperature": 2}, {"temperature": None}, {"top_p": 0}, {"top_p": 0.0001}, {"top_p": 1},
    {"top_k": 0}, {"top_k": 10**6}, {"seed": 0}, {"seed": 2**53 + 1}, {"presence_penalty": -2},
    {"frequency_penalty": 2}, {"n": 8}, {"stop": None}, {"stop": "x"}, {"stop": []}, {"max_tokens": 2**31 - 1},
    {"stream_options": {}}, {"stream_options": None}, {"stream_options": {"include_usage": True}},
    {"response_format": {"type": "text"}}, {"reasoning_effort": "max"}, {"metadata": {"a": "b"}, "user": "u"},
    {"unknown_top_level": [1]}, {"logit_bias": {}}, {"tool_choice": None, "tools": None}, {"logprobs": False},
    {"messages": [{"role": "developer", "content": [TEXT]}, *USER]},
    {"messages": [*USER, {"role": "assistant", "content": "x", "refusal": None, "audio": None}, *USER]},
]  # fmt: skip


@pytest.mark.parametrize("fields", TAKEN, ids=str)
def test_taken(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert http.post(CHAT, json={"messages": USER, **fields}).status_code == 200


def test_what_cannot_be_heard_beside_text_is_skipped(app: AppServer, http: httpx.Client) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    content = [{"type": "text", "text": "What "}, audio, {"type": "text", "text": "now?"}]
    reply = http.post(CHAT, json={"messages": [{"role": "user", "content": content}]}).json()
    assert reply["choices"][0]["message"]["content"] == "What now?"


COMPLETION_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "suffix": ({"suffix": "x"}, "suffix"),
    "best_of 2": ({"best_of": 2}, "best_of"), "best_of 0": ({"best_of": 0}, "best_of"),
    "echo text": ({"echo": "yes"}, "echo"),
    "logprobs true": ({"logprobs": True}, "logprobs"), "logprobs 21": ({"logprobs": 21}, "logprobs"),
    "max_tokens 0 without echo": ({"max_tokens": 0}, "max_tokens"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), COMPLETION_FIELDS.values(), ids=COMPLETION_FIELDS)
def test_completions_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = http.post(COMPLETIONS, json={"prompt": "x", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fields", [{"suffix": None}, {"best_of": 1}, {"echo": True}, {"echo": True, "max_tokens": 0}])
def test_completions_taken(http: httpx.Client, fields: dict[str, Any]) -> None:
    assert http.post(COMPLETIONS, json={"prompt": "x", **fields}).status_code == 200


PROMPTS: list[tuple[Any, int]] = [
    ("x", 200), (["x", "y"], 200), ([1, 2], 200), ([[1], [2]], 200), ("", 400), ([], 400), ([[]], 400), ([-1], 400),
    ([1000], 400), ([[1], "x"], 400), (["x", 1], 400), ([[-1]], 400), (None, 400), (5, 400), ({}, 400), ([True], 400),
    ([1.5], 400), ([None], 400), (["x"] * 300, 400),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "status"), PROMPTS, ids=lambda value: str(value)[:30])
def test_prompts(http: httpx.Client, prompt: Any, status: int) -> None:
    assert http.post(COMPLETIONS, json={"prompt": prompt}).status_code == status


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"nan"'])
def test_numbers_that_are_none(http: httpx.Client, number: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "temperature": {number}}}'
    response = http.post(CHAT, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_huge_bodies_cost_only_their_sender(app: AppServer, http: httpx.Client) -> None:
    deep = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    wide = b'{"messages": [' + b",".join([b"{}"] * 250_000) + b"]}"
    for content, status in ((deep, 400), (wide, 400), (b" " * (17 << 20), 413)):
        assert http.post(CHAT, content=content).status_code == status
    assert http.post(CHAT, json={"messages": USER}).status_code == 200
