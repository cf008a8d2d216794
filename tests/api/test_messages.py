from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.api.messages import parse_messages
from sparkinfer.request import Message, ToolCall
from tests.api.parsing import refused

USER = {"role": "user", "content": "hi"}


def call(call_id: str, name: str = "f", arguments: object = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)} | fields


def result(call_id: str, content: object = "ok", **fields: object) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content} | fields


@pytest.mark.parametrize(
    ("role", "expected"), [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant")]
)
def test_roles(role: str, expected: str) -> None:
    assert parse_messages([{"role": role, "content": "x"}]) == (Message(role=expected, content="x"),)


def test_system_messages_keep_their_place() -> None:
    roles = ["system", "system", "user", "assistant", "developer", "user"]
    messages = parse_messages([{"role": role, "content": role} for role in roles])
    assert [message.content for message in messages] == roles


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b\n"}]
    assert parse_messages([{"role": "user", "content": parts}])[0].content == "ab\n"
    calls = [assistant(call("1")), result("1", parts)]
    assert parse_messages(calls)[1].content == "ab\n"


def test_what_sdks_echo_is_accepted() -> None:
    echoed = {
        "role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": None, "reasoning": None, "reasoning_content": None, "name": None,
    }  # fmt: skip
    assert parse_messages([USER, echoed])[1] == Message(role="assistant", content="hi")


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_turns(key: str) -> None:
    message = {"role": "assistant", "content": "", key: "because"}
    assert parse_messages([USER, message])[1] == Message(role="assistant", content="", reasoning="because")


def test_refusal_stands_for_content() -> None:
    assert parse_messages([USER, {"role": "assistant", "refusal": "no"}])[1].content == "no"
    parts = [{"type": "refusal", "refusal": "no"}]
    assert parse_messages([USER, {"role": "assistant", "content": parts}])[1].content == "no"


@pytest.mark.parametrize(
    ("arguments", "expected"), [('{"a": 1}', '{"a": 1}'), ({"a": [1, "é"]}, '{"a":[1,"é"]}'), ("", "{}"), (" ", "{}")]
)
def test_tool_calls_in_history(arguments: object, expected: str) -> None:
    messages = parse_messages([USER, assistant(call("call_1", "look", arguments)), result("call_1"), USER])
    assert messages[1].tool_calls == (ToolCall(id="call_1", name="look", arguments=expected),)
    assert (messages[2].role, messages[2].tool_call_id, messages[2].content) == ("tool", "call_1", "ok")


def test_parallel_results_in_any_order() -> None:
    history = [assistant(call("1"), call("2")), result("2"), result("1", name="f"), USER]
    assert len(parse_messages(history)) == 4


def test_ids_may_repeat_in_later_turns() -> None:
    turn = [assistant(call("1")), result("1")]
    assert len(parse_messages(turn + turn)) == 4


BAD: dict[str, tuple[object, str]] = {
    "absent": (None, "messages"),
    "empty": ([], "messages"),
    "object": ({}, "messages"),
    "text": ("hi", "messages"),
    "too many": ([USER] * 10_001, "messages"),
    "message is text": (["hi"], "messages[0]"),
    "message is null": ([USER, None], "messages[1]"),
    "no role": ([{"content": "x"}], "messages[0].role"),
    "unknown role": ([{"role": "banana", "content": "x"}], "messages[0].role"),
    "role is a number": ([{"role": 7, "content": "x"}], "messages[0].role"),
    "no content": ([{"role": "user"}], "messages[0].content"),
    "null content": ([USER, {"role": "user", "content": None}], "messages[1].content"),
    "content is a number": ([{"role": "user", "content": 12}], "messages[0].content"),
    "no parts": ([{"role": "user", "content": []}], "messages[0].content"),
    "part is text": ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    "part without type": ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    "part without text": ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    "image": (
        [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}],
        "messages[0].content[1]",
    ),
    "audio": ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
    "unknown part": ([{"role": "user", "content": [{"type": "banana"}]}], "messages[0].content[0]"),
    "misspelt part key": (
        [{"role": "user", "content": [{"type": "text", "text": "x", "txet": 1}]}], "messages[0].content[0].txet"
    ),
    "unknown key": ([{"role": "user", "content": "x", "colour": 1}], "messages[0].colour"),
    "tool_call_id of a user": ([{"role": "user", "content": "x", "tool_call_id": "1"}], "messages[0].tool_call_id"),
    "name is a number": ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
    "assistant without anything": ([USER, {"role": "assistant"}], "messages[1]"),
    "assistant with no calls": ([USER, {"role": "assistant", "tool_calls": []}], "messages[1]"),
    "function_call": ([assistant(call("1"), function_call={"name": "f"})], "messages[0].function_call"),
    "reasoning is a list": ([{"role": "assistant", "content": "", "reasoning": []}], "messages[0].reasoning"),
    "calls is an object": ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
    "call without id": ([assistant({"function": {"name": "f", "arguments": ""}})], "messages[0].tool_calls[0].id"),
    "call without function": ([assistant({"id": "1"})], "messages[0].tool_calls[0].function"),
    "call without arguments": (
        [assistant({"id": "1", "function": {"name": "f"}})], "messages[0].tool_calls[0].function.arguments"
    ),
    "call of another type": ([assistant(call("1") | {"type": "custom"})], "messages[0].tool_calls[0].type"),
    "unknown call key": ([assistant(call("1") | {"x": 1})], "messages[0].tool_calls[0].x"),
    "arguments no JSON": ([assistant(call("1", "f", "{"))], "messages[0].tool_calls[0].function.arguments"),
    "arguments no object": ([assistant(call("1", "f", "[]"))], "messages[0].tool_calls[0].function.arguments"),
    "tool without id": ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    "orphan result": ([USER, result("1")], "messages[1].tool_call_id"),
    "result of another call": ([assistant(call("1")), result("2")], "messages[1].tool_call_id"),
    "result twice": ([assistant(call("1")), result("1"), result("1")], "messages[2].tool_call_id"),
    "result names another function": ([assistant(call("1")), result("1", name="g")], "messages[1].name"),
    "missing result": ([assistant(call("1"), call("2")), result("1"), USER], "messages[2]"),
    "missing result at the end": ([USER, assistant(call("1"))], "messages[1]"),
    "same id twice": ([assistant(call("1"), call("1")), result("1")], "messages[0].tool_calls"),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "param"), BAD.values(), ids=BAD.keys())
def test_bad_messages_are_located(messages: object, param: str) -> None:
    error = refused(parse_messages, messages)
    assert error.param == param
    assert param in error.message


def test_audio_beside_text_is_skipped() -> None:
    parts = [
        {"type": "text", "text": "What "}, {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "text", "text": "is this?"},
    ]  # fmt: skip
    assert parse_messages([{"role": "user", "content": parts}])[0].content == "What is this?"
