"""Tools, tool_choice and the calls of earlier turns: what is taken, what is refused, and where the error points."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.api.generation import Generation
from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt, ToolPolicy
from tests.api.parsing import USER, chat, refused

LOOKUP = {
    "type": "object",
    "properties": {
        "query": {
            "type": "object",
            "properties": {"category": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["category"],
            "additionalProperties": False,
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": 10},
    },
    "required": ["query", "limit"],
    "additionalProperties": False,
}
SUMMARIZE = {
    "type": "object",
    "properties": {
        "titles": {"type": "array", "items": {"type": "string"}},
        "style": {"type": "string", "enum": ["brief", "detailed"]},
    },
    "required": ["titles"],
}


def function(name: str, parameters: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    extra = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **extra, **fields}}


TOOLS = [function("lookup_catalog", LOOKUP, description="Find – é"), function("summarize_items", SUMMARIZE)]
BODY = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find it"}],
    "tools": TOOLS,
    "stream": True,
    "stream_options": {"include_usage": True},
}
NAMED = {"type": "function", "function": {"name": "lookup_catalog"}}


def prompt_of(generation: Generation) -> ChatPrompt:
    prompt = generation.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def policy_of(body: dict[str, Any]) -> ToolPolicy:
    return chat(body).requests[0].tool_policy


def test_tools_are_kept_whole() -> None:
    generation = chat(BODY)
    prompt = prompt_of(generation)
    assert [tool.name for tool in prompt.tools] == ["lookup_catalog", "summarize_items"]
    assert [json.loads(tool.definition) for tool in prompt.tools] == TOOLS
    assert json.loads(prompt.tools[0].parameters) == LOOKUP
    assert list(json.loads(prompt.tools[0].definition)["function"]) == list(TOOLS[0]["function"])
    assert generation.requests[0].tool_policy == ToolPolicy(choice="auto", parallel=True)
    assert (len(prompt.messages), generation.stream, generation.include_usage) == (2, True, True)


def test_a_function_without_parameters_takes_none() -> None:
    (tool,) = prompt_of(chat({"tools": [function("now")]})).tools
    assert json.loads(tool.parameters) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert "parameters" not in json.loads(tool.definition)["function"]


POLICIES: list[tuple[dict[str, Any], ToolPolicy]] = [
    ({}, ToolPolicy()),
    ({"tool_choice": None, "parallel_tool_calls": None}, ToolPolicy()),
    ({"tool_choice": "auto"}, ToolPolicy()),
    ({"tool_choice": "none"}, ToolPolicy(choice="none")),
    ({"tool_choice": "required"}, ToolPolicy(choice="required")),
    ({"tool_choice": NAMED}, ToolPolicy(choice="required", allowed=("lookup_catalog",))),
    ({"parallel_tool_calls": False}, ToolPolicy(parallel=False)),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
        ToolPolicy(choice="auto", allowed=("lookup_catalog",)),
    ),
]


@pytest.mark.parametrize(("fields", "policy"), POLICIES)
def test_choice(fields: dict[str, Any], policy: ToolPolicy) -> None:
    assert policy_of(BODY | fields) == policy


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_without_tools_the_choice_says_nothing(choice: Any) -> None:
    assert policy_of({"tool_choice": choice, "tools": []}) == ToolPolicy()


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": None}])
def test_without_tools_none_can_be_made_to_be_called(choice: Any, tools: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="tool_choice: no tools are given"):
        policy_of({"tool_choice": choice} | tools)


def test_tools_stay_known_when_none_may_be_called() -> None:
    assert len(prompt_of(chat(BODY | {"tool_choice": "none"})).tools) == 2


@pytest.mark.parametrize("strict", [{"strict": True}, {"strict": False}, {"strict": None}, {}])
def test_strict_changes_nothing_else(strict: dict[str, Any]) -> None:
    (tool,) = prompt_of(chat({"tools": [function("f", SUMMARIZE, **strict)]})).tools
    assert (tool.strict, json.loads(tool.parameters)) == (bool(strict.get("strict")), SUMMARIZE)


def test_names_may_differ_in_case_alone() -> None:
    assert len(prompt_of(chat({"tools": [function("f"), function("F")]})).tools) == 2


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": {}}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [function("f") | {"x": 1}]}, "tools[0].x"),
    ({"tools": [function("f", x=1)]}, "tools[0].function.x"),
    ({"tools": [function("")]}, "tools[0].function.name"),
    ({"tools": [function("a b")]}, "tools[0].function.name"),
    ({"tools": [function("é")]}, "tools[0].function.name"),
    ({"tools": [function("f" * 129)]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [function("f", description=7)]}, "tools[0].function.description"),
    ({"tools": [function("f", strict="yes")]}, "tools[0].function.strict"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools[0].function.parameters"),
    ({"tools": [function("f", {"type": "array"})]}, "tools[0].function.parameters.type"),
    ({"tools": [function("f"), function("g"), function("f")]}, "tools[2].function.name"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": 7}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": "delete"}}}, "tool_choice.function.name"),
    ({"tool_choice": NAMED | {"x": 1}}, "tool_choice.x"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
     "tool_choice.allowed_tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]}}},
     "tool_choice.allowed_tools.tools[0].type"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(chat, BODY | fields)
    assert error.param == param
    assert param in error.message


def history(name: str, arguments: Any = '{"titles": ["a"]}') -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        *USER,
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        *USER,
    ]


def test_earlier_calls_are_to_offered_functions() -> None:
    assert len(prompt_of(chat(BODY | {"messages": history("summarize_items")})).messages) == 4
    error = refused(chat, BODY | {"messages": history("delete")})
    assert error.param == "messages[1].tool_calls[0].function.name"


def test_earlier_calls_need_no_tools_in_a_request_without_any() -> None:
    assert len(prompt_of(chat({"messages": history("delete")})).messages) == 4


def test_a_key_that_the_model_repeated_may_be_sent_back() -> None:
    prompt = prompt_of(chat({"messages": history("delete", '{"a": 1, "a": 2}')}))
    assert prompt.messages[1].tool_calls[0].arguments == '{"a": 1, "a": 2}'
