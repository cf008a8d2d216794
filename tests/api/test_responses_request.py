"""Bodies of the Responses API and what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.api.responses.conversation import encode_reasoning
from sparkinfer.api.responses.request import ResponsesRequest, parse_responses_request
from sparkinfer.api.responses.tools import ClientTool
from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt, JsonObjectFormat, JsonSchemaFormat, Message, ToolCall, ToolPolicy
from tests.api.parsing import INFO, new_ids, refused

FUNCTION = {"type": "function", "name": "get_weather", "description": "Weather.", "strict": False,
            "parameters": {"type": "object", "properties": {}}}  # fmt: skip
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}  # fmt: skip
MCP = {"type": "namespace", "name": "mcp__files__", "description": "Files.",
       "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]}  # fmt: skip
HOSTED = [{"type": kind} for kind in (
    "web_search", "image_generation", "tool_search", "file_search", "mcp", "code_interpreter", "local_shell", "shell",
)]  # fmt: skip


UNFINISHED = '{"unfinished_arguments":"{\\"city\\": \\"Par"}'


def no_history(response_id: str) -> list[dict[str, Any]]:
    raise RequestError(400, "not found", param="previous_response_id")


def asked(find_history: Any = no_history, **fields: Any) -> ResponsesRequest:
    return parse_responses_request({"model": "m", "input": "hi"} | fields, INFO, new_ids(), find_history)


def prompt(*items: dict[str, Any], **fields: Any) -> ChatPrompt:
    found = asked(**({"input": list(items)} if items else {}), **fields).generation.requests[0].prompt
    assert isinstance(found, ChatPrompt)
    return found


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(call_id: str, name: str = "get_weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"} | fields


def output(call_id: str, value: Any = "18 C") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def test_a_string_is_a_user_message() -> None:
    found = prompt(instructions="Be brief.")
    assert found.messages == (Message(role="system", content="Be brief."), Message(role="user", content="hi"))


def test_controls() -> None:
    request = asked(max_output_tokens=9, temperature=0.5, top_p=0.8).generation.requests[0]
    assert (request.sampling.max_tokens, request.sampling.temperature, request.sampling.top_p) == (9, 0.5, 0.8)
    assert request.sampling.logprobs is None
    found = asked(include=["message.output_text.logprobs"], top_logprobs=3).generation.requests[0]
    assert found.sampling.logprobs == 3


def test_messages_of_every_spelling() -> None:
    found = prompt(
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "id": "msg_other", "role": "assistant", "status": "completed", "phase": "commentary",
         "content": [{"type": "output_text", "text": "c", "annotations": []}, {"type": "refusal", "refusal": "!"}]},
        {"role": "system", "content": "s"},
        user("e"),
    )  # fmt: skip
    assert [(m.role, m.content) for m in found.messages] == [
        ("system", "d"), ("user", "ab"), ("assistant", "c!"), ("system", "s"), ("user", "e"),
    ]  # fmt: skip


def test_an_agent_turn_is_one_message() -> None:
    found = prompt(
        user("Weather?"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}],
         "encrypted_content": None},
        {"role": "assistant", "content": "Looking."},
        call("c1", arguments='{"city": "Paris"}'), call("c2", "now", arguments=""),
        output("c2", [{"type": "input_text", "text": "no"}, {"type": "input_text", "text": " clock"}]), output("c1"),
        user("Thanks."),
    )  # fmt: skip
    assert found.messages[1] == Message(
        role="assistant", content="Looking.", reasoning="Look.",
        tool_calls=(ToolCall(id="c1", name="get_weather", arguments='{"city": "Paris"}'),
                    ToolCall(id="c2", name="now", arguments="{}")),
    )  # fmt: skip
    assert [(m.role, m.content, m.tool_call_id) for m in found.messages[2:]] == [
        ("tool", "no clock", "c2"), ("tool", "18 C", "c1"), ("user", "Thanks.", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": encode_reasoning("é")}, "é"),
        ({"summary": [], "encrypted_content": "gAAAAAB-another-server"}, None),
        ({"summary": [], "encrypted_content": "sparkinfer:%%"}, None),
    ],
)
def test_reasoning_comes_back(item: dict[str, Any], text: str | None) -> None:
    found = prompt(user("a"), {"type": "reasoning"} | item, {"role": "assistant", "content": "b"}, user("c"))
    assert found.messages[1].reasoning == text


def test_what_hosted_tools_left_is_passed_over() -> None:
    items = [{"type": "web_search_call", "id": "ws"}, {"type": "image_generation_call", "id": "ig", "result": "x"}]
    assert [m.role for m in prompt(user("a"), *items, user("b")).messages] == ["user", "user"]


def test_a_call_that_was_cut_off_stays_with_what_its_client_says_of_it() -> None:
    cut = call("c", arguments='{"city": "Par', status="incomplete")
    found = prompt(user("a"), {"role": "assistant", "content": "b"}, cut, output("c", "bad JSON"), user("d"))
    assert [(m.role, m.content, m.tool_calls) for m in found.messages] == [
        ("user", "a", ()),
        ("assistant", "b", (ToolCall(id="c", name="get_weather", arguments=UNFINISHED),)),
        ("tool", "bad JSON", ()),
        ("user", "d", ()),
    ]


def test_a_repeated_key_comes_back_as_it_was() -> None:
    found = prompt(user("a"), call("c", arguments='{"x": 1, "x": 2}'), output("c"))
    assert found.messages[1].tool_calls[0].arguments == '{"x": 1, "x": 2}'


def test_every_kind_of_tool() -> None:
    found = asked(tools=[FUNCTION, PATCH, MCP, *HOSTED])
    request = found.generation.requests[0]
    assert isinstance(request.prompt, ChatPrompt)
    assert [tool.name for tool in request.prompt.tools] == ["get_weather", "apply_patch", "mcp__files__read"]
    assert found.tools["mcp__files__read"] == ClientTool("read", "mcp__files__")
    assert found.tools["apply_patch"].is_custom
    patch = json.loads(request.prompt.tools[1].parameters)
    assert patch["required"] == ["input"]
    assert "start: /.+/" in patch["properties"]["input"]["description"]
    assert set(found.generation.skipped_tools) == {tool["type"] for tool in HOSTED}


def test_nothing_but_hosted_tools() -> None:
    found = asked(tools=HOSTED, tool_choice="auto").generation.requests[0]
    assert isinstance(found.prompt, ChatPrompt)
    assert found.prompt.tools == ()


def test_freeform_and_namespaced_calls_come_back() -> None:
    found = prompt(
        user("a"),
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin\n"},
        call("c2", "read", namespace="mcp__files__"),
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}, output("c2"),
    )  # fmt: skip
    calls = found.messages[1].tool_calls
    assert [(c.name, c.arguments) for c in calls] == [
        ("apply_patch", '{"input":"*** Begin\\n"}'), ("mcp__files__read", "{}"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "policy"),
    [
        (None, ToolPolicy()),
        ("none", ToolPolicy(choice="none")),
        ("required", ToolPolicy(choice="required")),
        ({"type": "function", "name": "get_weather"}, ToolPolicy(choice="required", allowed=("get_weather",))),
        ({"type": "custom", "name": "apply_patch"}, ToolPolicy(choice="required", allowed=("apply_patch",))),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]},
         ToolPolicy(allowed=("get_weather",))),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, ToolPolicy(choice="none")),
    ],
)  # fmt: skip
def test_tool_choice(choice: Any, policy: ToolPolicy) -> None:
    assert asked(tools=[FUNCTION, PATCH], tool_choice=choice).generation.requests[0].tool_policy == policy
    serial = asked(tools=[FUNCTION], parallel_tool_calls=False).generation.requests[0].tool_policy
    assert not serial.parallel


@pytest.mark.parametrize(
    ("reasoning", "kwargs"),
    [
        (None, {}),
        ({"effort": "none"}, {"enable_thinking": False}),
        ({"effort": "high", "summary": "auto"}, {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_effort(reasoning: Any, kwargs: dict[str, Any]) -> None:
    assert prompt(reasoning=reasoning).template_kwargs == kwargs


def test_text_format() -> None:
    def output_format(**form: Any) -> Any:
        return asked(text={"format": form, "verbosity": "low"}).generation.requests[0].output_format

    schema = {"type": "object"}
    assert output_format(type="text") is None
    assert output_format(type="json_object") == JsonObjectFormat()
    found = output_format(type="json_schema", name="n", schema=schema, strict=True, description="d")
    assert found == JsonSchemaFormat(schema='{"type": "object"}', name="n", strict=True)


def test_nulls_are_absent() -> None:
    nulls = dict.fromkeys(
        ("instructions", "tools", "tool_choice", "temperature", "top_p", "reasoning", "text", "previous_response_id",
         "conversation", "include", "metadata", "store", "stream", "background", "max_output_tokens", "top_logprobs",
         "truncation", "user", "prompt", "parallel_tool_calls", "max_tool_calls"),
    )  # fmt: skip
    assert asked(**nulls).generation.requests == asked().generation.requests


def test_a_stored_turn_is_the_beginning() -> None:
    history = [user("a"), {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}]
    found = asked(lambda response_id: history, previous_response_id="resp_1", input=[user("c")])
    request = found.generation.requests[0]
    assert isinstance(request.prompt, ChatPrompt)
    assert [m.content for m in request.prompt.messages] == ["a", "b", "c"]
    assert found.items == [*history, user("c")]


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "banana"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [output("c")]}, "input[0].call_id"),
        ({"input": [user("a"), call("c")]}, "input"),
        ({"input": [user("a"), call("c"), user("b")]}, "input[2]"),
        ({"input": [user("a"), call("c"), call("c")]}, "input[2].call_id"),
        ({"input": [user("a"), call("c", arguments="[1]")]}, "input[1].arguments"),
        ({"input": [user("a"), call("c", arguments="{x: 1}")]}, "input[1].arguments"),
        ({"input": [user("a"), call("c"), output("c", [IMAGE])]}, "input[2].output[0]"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools"),
        ({"tools": HOSTED, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": "banana"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "banana"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    assert refused(lambda: asked(**fields)).param == param
