"""Bodies of the Messages API and what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.api.anthropic.request import MessagesRequest, parse_messages_request
from sparkinfer.request import ChatPrompt, JsonSchemaFormat, Message, ToolCall, ToolPolicy
from tests.api.parsing import INFO, new_ids, refused

TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
USER = [{"role": "user", "content": "hi"}]


def asked(strip_billing_line: bool = True, **fields: Any) -> MessagesRequest:
    body = {"model": "claude", "max_tokens": 10, "messages": USER} | fields
    return parse_messages_request(body, INFO, new_ids(), strip_billing_line=strip_billing_line)


def prompt(**fields: Any) -> ChatPrompt:
    found = asked(**fields).generation.requests[0].prompt
    assert isinstance(found, ChatPrompt)
    return found


def turns(*messages: dict[str, Any], **fields: Any) -> list[Message]:
    return list(prompt(messages=list(messages), **fields).messages)


def use(call_id: str, name: str = "get_weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id} | fields


def test_controls() -> None:
    stops = ["a", "b", "c", "d", "e"]
    request = asked(temperature=0.3, top_p=0.9, top_k=7, stop_sequences=stops).generation.requests[0]
    assert (request.sampling.max_tokens, request.sampling.temperature) == (10, 0.3)
    assert (request.sampling.top_p, request.sampling.top_k, request.stop) == (0.9, 7, ("a", "b", "c", "d", "e"))


def test_what_only_anthropics_servers_act_on_is_accepted() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    found = prompt(
        system=[{"type": "text", "text": "Be brief.", "cache_control": mark}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": mark}]}],
        tools=[TOOL | {"cache_control": mark, "defer_loading": False, "eager_input_streaming": True}],
        metadata={"user_id": "u"}, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        betas=["x"], cache_control=mark, service_tier="auto", container=None, inference_geo="eu", mcp_servers=[],
    )  # fmt: skip
    assert [message.role for message in found.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("system", "text"),
    [("Be brief.", "Be brief."), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb")],
)
def test_system(system: Any, text: str) -> None:
    assert turns(*USER, system=system)[0] == Message(role="system", content=text)


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system(system: Any) -> None:
    assert [message.role for message in turns(*USER, system=system)] == ["user"]


BILLING = "x-anthropic-billing-header: cc_version=2.1.36; cch=0a1b2;"


@pytest.mark.parametrize(
    "system",
    [f"{BILLING}\nYou are Claude.", f"{BILLING}You are Claude.", f"{BILLING[:-1]}\nYou are Claude.",
     [{"type": "text", "text": BILLING}, {"type": "text", "text": "You are Claude."}]],
)
def test_the_volatile_billing_line_is_left_out(system: Any) -> None:
    assert turns(*USER, system=system)[0].content == "You are Claude."
    kept = asked(strip_billing_line=False, system=system).generation.requests[0].prompt
    assert isinstance(kept, ChatPrompt)
    assert (kept.messages[0].content or "").startswith(BILLING[:-1])


def test_a_system_message_stays_where_it_stands() -> None:
    found = turns(
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "system", "content": [{"type": "text", "text": "Now in French."}]}, {"role": "user", "content": "c"},
        system="s",
    )  # fmt: skip
    assert [(m.role, m.content) for m in found] == [
        ("system", "s"), ("user", "a"), ("assistant", "b"), ("system", "Now in French."), ("user", "c"),
    ]  # fmt: skip


def test_a_system_message_that_clears_itself() -> None:
    reminder = {"role": "system", "content": "r", "clear_at": "next_user_message"}
    assert [m.role for m in turns(*USER, reminder)] == ["user", "system"]
    assert [m.role for m in turns(*USER, reminder, *USER)] == ["user", "user"]


def test_an_agent_turn_and_its_results() -> None:
    found = turns(
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "sig"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "Looking."},
            use("toolu_1", city="Paris"), use("toolu_2", "now"),
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "And quickly."},
            result("toolu_2", is_error=True,
                   content=[{"type": "text", "text": "no"}, {"type": "text", "text": "clock"}]),
            result("toolu_1", content="18 C"),
        ]},
    )  # fmt: skip
    assert found[1] == Message(
        role="assistant", content="Looking.", reasoning="Let me look.",
        tool_calls=(ToolCall(id="toolu_1", name="get_weather", arguments='{"city":"Paris"}'),
                    ToolCall(id="toolu_2", name="now", arguments="{}")),
    )  # fmt: skip
    assert found[2:] == [
        Message(role="tool", content="Error: no\nclock", name="now", tool_call_id="toolu_2"),
        Message(role="tool", content="18 C", name="get_weather", tool_call_id="toolu_1"),
        Message(role="user", content="And quickly."),
    ]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_result_may_be_empty(content: Any) -> None:
    called = {"role": "assistant", "content": [use("t")]}
    assert turns(*USER, called, {"role": "user", "content": [result("t", content=content)]})[-1].content == ""


def test_an_answer_begun_is_continued() -> None:
    found = prompt(messages=[*USER, {"role": "assistant", "content": "The best answer is ("}])
    assert found.continue_final_message
    assert not found.add_generation_prompt


def test_tools() -> None:
    found = prompt(tools=[TOOL | {"type": "custom"}, SEARCH])
    assert [tool.name for tool in found.tools] == ["get_weather"]
    function = json.loads(found.tools[0].definition)["function"]
    assert function == {"name": "get_weather", "description": "Weather.", "parameters": TOOL["input_schema"]}
    assert asked(tools=[TOOL, SEARCH]).generation.skipped_tools == ("web_search_20250305",)


@pytest.mark.parametrize(
    ("choice", "policy"),
    [
        (None, ToolPolicy()),
        ({"type": "auto"}, ToolPolicy()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolPolicy(parallel=False)),
        ({"type": "any"}, ToolPolicy(choice="required")),
        ({"type": "none"}, ToolPolicy(choice="none")),
        ({"type": "tool", "name": "get_weather"}, ToolPolicy(choice="required", allowed=("get_weather",))),
    ],
)
def test_tool_choice(choice: Any, policy: ToolPolicy) -> None:
    assert asked(tools=[TOOL], tool_choice=choice).generation.requests[0].tool_policy == policy


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh"}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, {"enable_thinking": False}),
    ],
)
def test_thinking(fields: dict[str, Any], kwargs: dict[str, Any]) -> None:
    assert prompt(**fields).template_kwargs == kwargs


def test_output_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for fields in ({"output_config": {"format": {"type": "json_schema", "schema": schema}}},
                   {"output_format": {"type": "json_schema", "schema": schema}}):  # fmt: skip
        found = asked(**fields).generation.requests[0].output_format
        assert isinstance(found, JsonSchemaFormat)
        assert json.loads(found.schema) == schema
    assert asked(output_config={"effort": None, "format": None}).generation.requests[0].output_format is None


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
CALLED = {"role": "assistant", "content": [use("t")]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        ({"messages": [*USER, CALLED]}, "messages[1]"),
        ({"messages": [*USER, CALLED, *USER]}, "messages[2].content"),
        ({"messages": [{"role": "user", "content": [result("t")]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [*USER, CALLED, {"role": "user", "content": [result("t", content=[IMAGE])]}]},
         "messages[2].content[0].content[0]"),
        ({"messages": [*USER, {"role": "assistant", "content": [use("t"), use("t")]}]}, "messages[1].content[1].id"),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"tools": [SEARCH]}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL | {"input_schema": None}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"thinking": {"type": "banana"}}, "thinking.type"),
        ({"output_config": {"effort": "banana"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"mcp_servers": [{"type": "url", "url": "x"}]}, "mcp_servers"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"temperature": 3}, "temperature"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    assert refused(lambda: asked(**fields)).param == param
