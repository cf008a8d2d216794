from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.request import ChatPrompt, Message
from tests.api.parsing import chat, refused

ASSISTANT_LAST = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]


def test_a_plain_request() -> None:
    generation = chat({"model": "whatever"})
    (request,) = generation.requests
    assert request.prompt == ChatPrompt(messages=(Message(role="user", content="hi"),))
    assert (request.request_id, request.n, request.stop, request.sampling.logprobs) == (1, 1, (), None)
    assert (generation.stream, generation.include_usage, generation.num_choices) == (False, False, 1)


def test_unknown_fields_at_the_top_are_ignored() -> None:
    ignored = {
        "functions": [], "best_of": 3, "x": {"y": 1}, "user": "me", "metadata": {"a": "b"}, "store": False,
        "service_tier": "auto", "prediction": None, "safety_identifier": "s", "parallel_tool_calls": True,
    }  # fmt: skip
    assert chat(ignored) == chat({})


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, False), (None, False), ({"include_usage": False}, False), ({"include_usage": None}, False),
     ({"include_usage": True}, True)],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
def test_stream_options(options: object, expected: bool, stream: bool) -> None:
    generation = chat({"stream": stream, "stream_options": options})
    assert (generation.stream, generation.include_usage) == (stream, expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20), ({"logprobs": False}, None),
     ({"logprobs": False, "top_logprobs": 0}, None)],
)  # fmt: skip
def test_logprobs(body: dict[str, Any], expected: int | None) -> None:
    assert chat(body).requests[0].sampling.logprobs == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"user": 7}, "user"),
        ({"metadata": "x"}, "metadata"),
        ({"store": "x"}, "store"),
        ({"service_tier": 1}, "service_tier"),
        ({"model": 1}, "model"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": ASSISTANT_LAST, "continue_final_message": True, "add_generation_prompt": True},
         "add_generation_prompt"),
    ],
)  # fmt: skip
def test_bad_field_is_named(body: dict[str, Any], param: str) -> None:
    error = refused(chat, body)
    assert error.param == param
    assert param in error.message


def test_final_message_is_continued() -> None:
    prompt = chat({"messages": ASSISTANT_LAST, "continue_final_message": True}).requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


THINKING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"enable_thinking": True}, {"enable_thinking": True}),
    ({"enable_thinking": None}, {}),
    ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ({"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True}, {"enable_thinking": True}),
    ({"chat_template_kwargs": {"preserve_thinking": True, "x": [1]}}, {"preserve_thinking": True, "x": [1]}),
    ({"reasoning_effort": "none"}, {"enable_thinking": False}),
    ({"reasoning_effort": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}),
    ({"reasoning_effort": "max"}, {"enable_thinking": True, "reasoning_effort": "xhigh"}),
    ({"reasoning": {"effort": "high"}}, {"enable_thinking": True, "reasoning_effort": "high"}),
    ({"reasoning": {"max_tokens": 500}}, {"enable_thinking": True, "reasoning_effort": "medium"}),
    ({"reasoning": {"enabled": True}}, {"enable_thinking": True}),
    ({"reasoning": {"enabled": False, "effort": "high"}}, {"enable_thinking": False}),
    ({"reasoning": {"exclude": True}}, {}),
    ({"reasoning_effort": "high", "enable_thinking": False}, {"enable_thinking": False, "reasoning_effort": "high"}),
]


@pytest.mark.parametrize(("body", "expected"), THINKING)
def test_thinking_becomes_template_kwargs(body: dict[str, Any], expected: dict[str, Any]) -> None:
    prompt = chat(body).requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == expected


def test_reasoning_can_be_kept_out_of_the_answer() -> None:
    assert chat({"reasoning": {"exclude": True}}).exclude_reasoning
    assert not chat({}).exclude_reasoning


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"preserve_thinking": "x"}}, "chat_template_kwargs.preserve_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {str(i): 1 for i in range(33)}}, "chat_template_kwargs"),
        ({"reasoning_effort": "banana"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": 0}}, "reasoning.max_tokens"),
        ({"reasoning": {"enabled": 1}}, "reasoning.enabled"),
        ({"reasoning": {"exclude": "x"}}, "reasoning.exclude"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort"),
    ],
)
def test_bad_thinking_field_is_named(body: dict[str, Any], param: str) -> None:
    assert refused(chat, body).param == param
