"""Whatever JSON comes in: a valid Request that can cross a process border, or a located 400. Never anything else."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.api.chat import parse_chat
from sparkinfer.api.completions import parse_completion
from sparkinfer.api.errors import error_json
from sparkinfer.errors import RequestError
from sparkinfer.request import Request
from tests.api.parsing import INFO, new_ids

FIELDS = [
    "messages", "prompt", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "stop", "n", "logprobs", "top_logprobs", "max_tokens",
    "max_completion_tokens", "stream", "stream_options", "enable_thinking", "chat_template_kwargs", "reasoning_effort",
    "reasoning", "tools", "tool_choice", "response_format", "stop_token_ids", "ignore_eos", "echo", "suffix", "best_of",
    "user", "metadata", "continue_final_message", "add_generation_prompt", "model",
]  # fmt: skip
KEYS = [
    "role", "content", "name", "type", "text", "tool_calls", "tool_call_id", "function", "arguments", "id",
    "reasoning", "refusal", "effort", "enabled", "exclude", "max_tokens", "include_usage", "enable_thinking", "1", "-1",
]  # fmt: skip
WORDS = ["user", "assistant", "tool", "system", "text", "function", "none", "high", "hi", "", "{}", "{", "é😀", "1"]

scalar = (
    st.none() | st.booleans() | st.integers() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.sampled_from(WORDS)
    | st.text(max_size=3) | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**40, 1e308])
)  # fmt: skip
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
message = st.dictionaries(st.sampled_from(KEYS), value, max_size=4) | st.fixed_dictionaries(
    {"role": st.sampled_from(WORDS), "content": value}
)
body = st.dictionaries(st.sampled_from(FIELDS), value, max_size=4)


def check(parse: Any, fields: dict[str, Any]) -> None:
    try:
        generation = parse(fields, INFO, new_ids())
    except RequestError as error:
        answer = msgspec.json.decode(error_json(error))["error"]
        problem = (error.status, answer["type"], answer["param"] is None)
    else:
        problem = (400, "invalid_request_error", False)
        for request in generation.requests:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request) == request
    assert problem == (400, "invalid_request_error", False)


@given(body, st.lists(message, min_size=1, max_size=3))
@settings(max_examples=400, deadline=None)
def test_chat(fields: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    check(parse_chat, fields | {"messages": messages})


@given(body)
@settings(max_examples=200, deadline=None)
def test_chat_with_good_messages(fields: dict[str, Any]) -> None:
    check(parse_chat, fields | {"messages": [{"role": "user", "content": "hi"}]})


@given(body, value)
@settings(max_examples=300, deadline=None)
def test_completion(fields: dict[str, Any], prompt: Any) -> None:
    check(parse_completion, {"prompt": prompt} | fields)
