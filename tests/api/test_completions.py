from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.request import TextPrompt, TokenPrompt
from tests.api.parsing import completion, refused

PROMPTS: list[tuple[object, list[TextPrompt | TokenPrompt]]] = [
    ("hi", [TextPrompt(text="hi")]),
    (["a", "b"], [TextPrompt(text="a"), TextPrompt(text="b")]),
    ([1, 2, 999], [TokenPrompt(token_ids=(1, 2, 999))]),
    ([[1], [2, 3]], [TokenPrompt(token_ids=(1,)), TokenPrompt(token_ids=(2, 3))]),
]


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS)
def test_prompts(prompt: object, expected: list[TextPrompt | TokenPrompt]) -> None:
    generation = completion({"prompt": prompt, "n": 2})
    assert [request.prompt for request in generation.requests] == expected
    assert [request.request_id for request in generation.requests] == list(range(1, len(expected) + 1))
    assert generation.num_choices == 2 * len(expected)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        (7, "prompt"),
        ({"a": 1}, "prompt"),
        ([""], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([[-1]], "prompt[0][0]"),
        ([1000], "prompt[0]"),
        ([1, "a"], "prompt[1]"),
        ([1, 2.5], "prompt[1]"),
        ([True], "prompt[0]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], [2, 1000]], "prompt[1][1]"),
        ([None], "prompt[0]"),
        (["a"] * 257, "prompt"),
        ([1] * 100, "prompt"),
    ],
)
def test_bad_prompt_is_located(prompt: object, param: str) -> None:
    assert refused(completion, {"prompt": prompt}).param == param


def test_a_prompt_that_fills_the_context_is_refused_in_the_words_that_agents_look_for() -> None:
    error = refused(completion, {"prompt": [1] * 100})
    assert error.code == "context_length_exceeded"
    assert "maximum context length is 100 tokens" in error.message
    assert completion({"prompt": [1] * 99})


def test_fields() -> None:
    generation = completion(
        {"echo": True, "logprobs": 3, "stop": "x", "best_of": 1, "suffix": None, "stream": True,
         "stream_options": {"include_usage": True}, "max_tokens": 5}
    )  # fmt: skip
    (request,) = generation.requests
    assert (request.echo, request.stop, request.sampling.logprobs, request.sampling.max_tokens) == (True, ("x",), 3, 5)
    assert (generation.stream, generation.include_usage) == (True, True)


@pytest.mark.parametrize("logprobs", [None, 0, 5])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echo_with_logprobs_scores_the_prompt(logprobs: int | None, max_tokens: int) -> None:
    (request,) = completion({"echo": True, "logprobs": logprobs, "max_tokens": max_tokens}).requests
    assert (request.sampling.prompt_logprobs, request.sampling.max_tokens) == (logprobs, max_tokens)
    assert request.uses_cache == (logprobs is None and max_tokens == 1)


def test_a_prompt_that_is_not_continued_may_fill_the_context() -> None:
    assert completion({"prompt": [1] * 100, "echo": True, "max_tokens": 0})
    assert refused(completion, {"prompt": [1] * 101, "echo": True, "max_tokens": 0}).code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": False, "echo": True}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"suffix": ""}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": False}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 1.5}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"user": []}, "user"),
        ({"prompt": ["a"] * 100, "n": 8}, "prompt"),
    ],
)
def test_bad_field_is_named(body: dict[str, Any], param: str) -> None:
    assert refused(completion, body).param == param
