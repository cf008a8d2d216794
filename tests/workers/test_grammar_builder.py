"""What the builder answers: a grammar that works, or a refusal that names the function, the place and the keyword."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.grammar.grammar_spec import CallCheck, GrammarSpec
from sparkinfer.request import GrammarFormat, JsonSchemaFormat, OutputFormat, RegexFormat, Tool
from workers.grammar_builder import build
from workers.grammar_frame import Built, Refused

LARGE = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 999_999_937}}}


def tool(name: str, schema: Any) -> Tool:
    return Tool(name=name, definition="{}", parameters=json.dumps(schema))


@pytest.mark.parametrize("protocol", ["qwen_xml", "hermes", "muse"])
def test_a_refusal_names_the_function_the_place_and_the_keyword(protocol: str) -> None:
    begun: list[str] = []
    tools = (tool("get_time", {"type": "object"}), tool("get_weather", LARGE))
    reply = build(GrammarSpec(special_tokens=("<tool_call>",), protocol=protocol, tools=tools), begun.append)
    assert isinstance(reply, Refused)
    assert reply.param == "tools[1].function.parameters.properties.a.multipleOf"
    assert reply.message.startswith(reply.param)
    assert "(function 'get_weather')" in reply.message
    assert begun == ["tools[0].function.parameters", "tools[1].function.parameters"]


@pytest.mark.parametrize(("output_format", "param", "words"), [
    (RegexFormat(pattern="("), "regex", "regex parse error"),
    (RegexFormat(pattern="(a{1000}){1000}"), "regex", "repeats more than 100000 times"),
    (RegexFormat(pattern=r"a[^\s\S]"), "regex", "no text satisfies it"),
    (GrammarFormat(grammar='start: "a" start'), "grammar", "no text satisfies it"),
    (GrammarFormat(grammar="start: x\nx: x"), "grammar", "no text satisfies it"),
    (GrammarFormat(grammar="start: nothing"), "grammar", "unknown name"),
    (GrammarFormat(grammar='start: "a" <|im_end|> "b"'), "grammar", "special tokens"),
    (GrammarFormat(grammar='root ::= "\\ud83d"'), "grammar", "is no character"),
    (JsonSchemaFormat(schema=json.dumps({"type": "string", "pattern": "^(ab)*c", "minLength": 10**6})),
     "response_format.json_schema.schema.pattern", "too complex"),
])  # fmt: skip
def test_what_llguidance_refuses_has_a_place_too(output_format: OutputFormat, param: str, words: str) -> None:
    reply = build(GrammarSpec(special_tokens=(), output_format=output_format))
    assert isinstance(reply, Refused)
    assert (reply.status, reply.param) == (400, param)
    assert words in reply.message


def test_a_grammar_and_checked_calls_are_built() -> None:
    assert isinstance(build(GrammarSpec(special_tokens=(), output_format=RegexFormat(pattern="[ab]+"))), Built)
    assert build(CallCheck(("{}",), (("messages[0]", 0, '{"a": 1}'),))) == Built("", ())


def test_calls_that_are_no_json_are_refused() -> None:
    path = "messages[1].tool_calls[0].function.arguments"
    reply = build(CallCheck(("{}",), ((path, 0, '{"a": ' + "9" * 5000 + "}"),)))
    assert isinstance(reply, Refused)
    assert reply.message.startswith(f"{path} is not valid JSON")
    assert "sys." not in reply.message
