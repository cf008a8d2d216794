"""Grammars of whole answers: what is admitted is what the readers take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.errors import RequestError
from sparkinfer.grammar.matcher import GrammarError
from sparkinfer.request import (
    ChatPrompt,
    ChoiceFormat,
    GrammarFormat,
    JsonObjectFormat,
    Message,
    OutputFormat,
    RegexFormat,
    Request,
    RequestId,
    Tool,
    ToolPolicy,
)
from sparkinfer.sampling_params import SamplingParams
from sparkinfer.text.answer_grammar import answer_grammar
from sparkinfer.text.content_filter import ContentFilter
from sparkinfer.text.reply_options import content_options
from sparkinfer.text.tool_protocols.protocol import ToolProtocol
from tests.text.answers import (
    CALL,
    HERMES,
    MUSE,
    NAMED,
    NONE,
    NOW,
    PERSON_FORMAT,
    QWEN,
    REQUIRED,
    SINGLE,
    TOOLS,
    Model,
    admits,
    qwen,
    spec,
)  # fmt: skip

QWEN_CASES: list[tuple[ToolPolicy, str, bool]] = [
    (ToolPolicy(), "", True), (ToolPolicy(), "x < 10 and <b>bold</b>, <tool, <<to", True), (ToolPolicy(), CALL, True),
    (ToolPolicy(), f"Look:\n\n{CALL}\n{NOW}", True), (ToolPolicy(), f"{CALL}\n", True),
    (ToolPolicy(), f"{CALL} done", False), (ToolPolicy(), "a </tool_call> b", False),
    (ToolPolicy(), "<function=now>", False), (ToolPolicy(), "<think>", False), (ToolPolicy(), "<|im_end|>", False),
    (REQUIRED, CALL, True), (REQUIRED, f"{CALL}\n{NOW}", True), (REQUIRED, "", False), (REQUIRED, "prose", False),
    (REQUIRED, f"prose {CALL}", False), (REQUIRED, qwen("get_date"), False), (REQUIRED, qwen("get_time"), False),
    (REQUIRED, qwen("GET_TIME", zone="x"), False),
    (NAMED, NOW, True), (NAMED, CALL, False),
    (SINGLE, CALL, True), (SINGLE, f"{CALL}\n{NOW}", False),
    (NONE, "prose", True), (NONE, CALL, False),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "text", "is_admitted"), QWEN_CASES)
def test_shapes_of_a_turn(policy: ToolPolicy, text: str, is_admitted: bool) -> None:
    assert admits(text, policy=policy) == is_admitted


ARGUMENTS: list[tuple[dict[str, str], bool]] = [
    ({"zone": "x < 10"}, True), ({"zone": "<b>bold</b>"}, True), ({"zone": "<<to"}, True), ({"zone": ""}, True),
    ({"zone": "two\n\nlines\n"}, True), ({"zone": "é😀"}, True), ({"zone": '{"a": 1}'}, True),
    ({"zone": "a<tool_call>b"}, False), ({"zone": "a</parameter>b"}, False), ({"zone": "<|im_end|>"}, False),
    ({"zone": "x", "style": "long"}, True), ({"zone": "x", "style": "tall"}, False),
    ({"zone": "x", "digits": "9"}, True), ({"zone": "x", "digits": "10"}, False),
    ({"zone": "x", "digits": "1.5"}, False), ({"zone": "x", "digits": '"1"'}, False),
    ({"zone": "x", "box": '{"html": "x < 10 <b></b> <<to"}'}, True), ({"zone": "x", "box": '{"other": 1}'}, False),
    ({"zone": "x", "code": "AB"}, True), ({"zone": "x", "code": "ABC"}, False), ({"zone": "x", "code": "ab"}, False),
    ({"zone": "x", "maybe": "null"}, True), ({"zone": "x", "maybe": "nothing"}, True),
    ({"zone": "x", "colour": "red"}, False), ({"style": "long"}, False),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "is_admitted"), ARGUMENTS)
def test_arguments(arguments: dict[str, str], is_admitted: bool) -> None:
    assert admits(qwen("get_time", **arguments)) == is_admitted


A, B, AB = {"a": "x"}, {"b": "5"}, {"a": "x", "b": "5"}
TWO = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
SCHEMAS: list[tuple[dict[str, Any], list[dict[str, str]], list[dict[str, str]]]] = [
    ({**TWO, "minProperties": 1}, [A, B, AB], [{}]),
    ({**TWO, "maxProperties": 1}, [{}, A, B], [AB]),
    ({**TWO, "dependentRequired": {"a": ["b"]}}, [{}, B, AB], [A]),
    ({**TWO, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [A, B, AB], [{}]),
    ({**TWO, "not": {"required": ["a", "b"]}}, [{}, A, B], [AB]),
    ({**TWO, "if": {"required": ["a"]}, "then": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}},
     [{}, B, AB, {"b": "1"}], [A, {"a": "x", "b": "1"}]),
    ({"oneOf": [
        {"properties": {"kind": {"const": "n"}, "b": {"type": "integer"}}, "required": ["kind", "b"]},
        {"properties": {"kind": {"const": "s"}, "a": {"type": "string"}}, "required": ["kind"]},
     ]}, [{"kind": "n", "b": "5"}, {"kind": "s"}, {"kind": "s", "a": "5"}], [{"kind": "n"}, {"kind": "x"}]),
    ({"$ref": "#/$defs/x", "$defs": {"x": {**TWO, "required": ["a"]}}}, [A, AB], [{}, B]),
    ({"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"maxLength": 1}}}]},
     [{}, A], [{"a": "xy"}]),
    ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
     [{}, {"xa": "1"}, {"x": "1", "xb": "2"}], [{"a": "1"}, {"x": "y"}]),
    ({"additionalProperties": {"type": "string"}}, [{}, {"any": "thing", "b": "5"}], []),
]  # fmt: skip


@pytest.mark.parametrize("changes", [{"required": 5}, {"required": [["city"]]}, {"properties": 5}, {"required": None}])
def test_malformed_parameters_are_refused_in_every_protocol(changes: dict[str, Any]) -> None:
    tool = Tool(name="f", definition="{}", parameters=json.dumps(NAMED_CITY | changes))
    for protocol in (QWEN, HERMES, MUSE):
        with pytest.raises(RequestError):
            answer_grammar(spec(protocol, tools=(tool,)))


NAMED_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(("schema", "takes_others"), [
    (NAMED_CITY, False), ({**NAMED_CITY, "additionalProperties": True}, False),
    ({**NAMED_CITY, "additionalProperties": {"type": "string"}}, True), ({"type": "object"}, True),
    ({**NAMED_CITY, "required": ["city", "day"]}, True), ({**NAMED_CITY, "patternProperties": {"^d": {}}}, True),
])  # fmt: skip
def test_arguments_of_other_names_in_json(schema: dict[str, Any], takes_others: bool) -> None:
    """None where a function names its arguments and says nothing of others."""
    tool = Tool(name="f", definition="{}", parameters=json.dumps(schema))

    def call(**arguments: str) -> str:
        return f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'

    assert admits(call(city="Oslo", day="1"), protocol=HERMES, tools=(tool,)) == takes_others
    if "day" not in schema.get("required", ()):
        assert admits(call(city="Oslo"), protocol=HERMES, tools=(tool,))


@pytest.mark.parametrize(("schema", "good", "bad"), SCHEMAS)
def test_keywords_of_a_function_as_a_whole(
    schema: dict[str, Any], good: list[dict[str, str]], bad: list[dict[str, str]]
) -> None:
    """What is admitted is read as arguments that follow the schema."""
    tool = Tool(name="f", definition="{}", parameters=json.dumps(schema))
    prompt = ChatPrompt(messages=(Message(role="user", content="x"),), tools=(tool,))
    request = Request(request_id=RequestId(1), prompt=prompt, sampling=SamplingParams(max_tokens=9))
    options = content_options(request, QWEN)
    for arguments in good:
        assert admits(qwen("f", **arguments), tools=(tool,)), arguments
        content_filter = ContentFilter(options)  # checks by itself
        content_filter.push(qwen("f", **arguments))
        assert content_filter.flush(is_complete=True) == ""
        assert content_filter.failure is None, arguments
    for arguments in bad:
        assert not admits(qwen("f", **arguments), tools=(tool,)), arguments


def test_an_argument_stands_once_and_its_text_is_utf8() -> None:
    twice = CALL.replace("</function>", "<parameter=zone>\nx\n</parameter>\n</function>")
    assert not admits(twice)
    assert not admits(CALL.replace("\n</parameter>", "\n</parameter>\n</parameter>", 1))
    model = Model(QWEN, answer_grammar(spec()))
    for token in model.tokens(CALL.split("UTC")[0]):
        model.matcher.accept(token)
    with pytest.raises(GrammarError):
        model.matcher.accept(0xFF)


THINKING: list[tuple[dict[str, Any], str, bool]] = [
    ({"starts_in_reasoning": True, "can_reason": True}, f"hm <b>\n</think>\n\n{CALL}", True),
    ({"starts_in_reasoning": True, "can_reason": True}, f"</think>{CALL}", True),
    ({"starts_in_reasoning": True, "can_reason": True}, CALL, False),
    ({"starts_in_reasoning": True, "can_reason": True}, "hm <tool_call>", False),
    ({"starts_in_reasoning": True, "can_reason": True}, "hm", False),
    ({"can_reason": True}, f"<think>\nhm</think>\n\n{CALL}", True),
    ({"can_reason": True}, CALL, True),
    ({"can_reason": True}, "<think>hm", False),
    ({}, f"<think>hm</think>{CALL}", False),
]


@pytest.mark.parametrize(("fields", "text", "is_admitted"), THINKING)
def test_reasoning_comes_first(fields: dict[str, Any], text: str, is_admitted: bool) -> None:
    assert admits(text, policy=REQUIRED, **fields) == is_admitted


FORMATS: list[tuple[OutputFormat, str, bool]] = [
    (PERSON_FORMAT, '{"name": "a <b> cde"}', False), (PERSON_FORMAT, '{"name": "<b></b>"}', True),
    (PERSON_FORMAT, '{"name": "<think"}', True), (PERSON_FORMAT, '{"tags": []}', False),
    (PERSON_FORMAT, CALL, True), (PERSON_FORMAT, f"Look: {CALL}", False), (PERSON_FORMAT, "prose", False),
    (JsonObjectFormat(), '{"a": [1, {}]}', True), (JsonObjectFormat(), "[]", False),
    (JsonObjectFormat(), '{"a": 1e400}', False), (JsonObjectFormat(), "{}" + "\n" * 40, False),
    (ChoiceFormat(("yes", "no")), "no", True), (ChoiceFormat(("yes", "no")), "maybe", False),
    (RegexFormat("(.|\\n)*"), "x < 1 and <b>", True), (RegexFormat("(.|\\n)*"), CALL, True),
    (RegexFormat("(.|\\n)*"), CALL.replace("get_time", "get_date"), False),
    (RegexFormat("(.|\\n)*"), "a </think>", False),
    (RegexFormat("(.|\\n)*"), f"prose {CALL}", False), (GrammarFormat('start: "a" /<?b+/'), "a<bb", True),
]  # fmt: skip


@pytest.mark.parametrize(("output_format", "text", "is_admitted"), FORMATS)
def test_a_form_or_a_call(output_format: OutputFormat, text: str, is_admitted: bool) -> None:
    assert admits(text, output_format=output_format) == is_admitted
    thinking = {"starts_in_reasoning": True, "can_reason": True}
    assert admits("hm</think>\n\n" + text, output_format=output_format, **thinking) == is_admitted


@pytest.mark.parametrize("output_format", [
    ChoiceFormat(("yes", "<tool_call>")), GrammarFormat("start: /(.|\\n)*/"), GrammarFormat('start: " "* "<" /.*/'),
])  # fmt: skip
@pytest.mark.parametrize("policy", [ToolPolicy(), NONE])
def test_a_form_that_spells_a_call_is_refused(output_format: OutputFormat, policy: ToolPolicy) -> None:
    with pytest.raises(RequestError, match="<tool_call>"):
        answer_grammar(spec(HERMES, policy=policy, output_format=output_format))


NAMES = ["$filter", "größe", "a b", "user/id", "@type", 'x"y', "a\\b", "😀", "a=b", "parameter"]


@pytest.mark.parametrize("name", NAMES)
def test_arguments_have_any_name(name: str) -> None:
    schema = json.dumps({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]})
    tools = (Tool(name="f", definition="{}", parameters=schema),)
    assert admits(qwen("f", **{name: "1"}), tools=tools)
    arguments = json.dumps({name: 1}, ensure_ascii=False)
    assert admits(f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>', HERMES, tools=tools)


@pytest.mark.parametrize("name", ["", "a>b", "<b>", "a\nb", "k" * 300])
def test_a_name_that_no_tag_can_hold_is_refused(name: str) -> None:
    tools = (Tool(name="f", definition="{}", parameters=json.dumps({"properties": {name: {}}})),)
    with pytest.raises(RequestError, match="cannot have an argument named"):
        answer_grammar(spec(QWEN, tools=tools))
    assert admits('{"a": 1}', HERMES, tools=tools, output_format=JsonObjectFormat())


def test_other_protocols() -> None:
    call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "</tool_call>\\u003c"}}\n</tool_call>'
    assert admits(f"Well {call}\n{call}", HERMES)
    assert not admits(call.replace("zone", "zones"), HERMES)
    assert not admits(call, HERMES, policy=NAMED)
    muse = (
        ' to=self<|message|>hm<|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n'
        '<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
    )
    assert admits(muse, MUSE)
    assert admits(" to=user<|message|>Hello", MUSE)
    assert not admits(" to=user<|message|>Hello", MUSE, policy=REQUIRED)
    assert not admits(muse.replace("to=now", "to=get_time"), MUSE)


DESCRIPTIONS = ["<tool_call>", '"quoted"', "a\nb", "</parameter>", "😀", "x" * 10_000, "\\", "%json", "/regex/", "{{"]


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_descriptions_do_not_reach_the_grammar(description: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": description}}}
    plain = {"type": "object", "properties": {"a": {"type": "string"}}}
    for protocol in (QWEN, HERMES):
        tool = Tool(name="f", definition=json.dumps(description), parameters=json.dumps(schema))
        grammar = answer_grammar(spec(protocol, tools=(tool,)))
        assert description[:20] not in grammar.lark or description in ("<tool_call>", "</parameter>", "\\")
        Model(protocol, grammar)
        assert len(grammar.lark) == len(
            answer_grammar(spec(protocol, tools=(Tool(name="f", definition="", parameters=json.dumps(plain)),))).lark
        )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}}, "minimum"),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}, "pattern"),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "$ref"),
    ({"type": "object", "properties": {"a": {"type": "wrong"}}}, "type"),
    ({"type": "object", "required": ["b"], "additionalProperties": False}, "required"),
    ({"type": "object", "properties": {"a": [{"type": "integer"}]}}, "properties.a"),
    ({"type": "object", "properties": {"a": None}}, "properties.a"),
]


@pytest.mark.parametrize(("schema", "keyword"), BAD)
@pytest.mark.parametrize("protocol", [QWEN, HERMES, MUSE])
def test_a_schema_that_cannot_be_kept_to_is_refused_by_tool_and_keyword(
    schema: dict[str, Any], keyword: str, protocol: ToolProtocol
) -> None:
    tool = Tool(name="f", definition="{}", parameters=json.dumps(schema))
    with pytest.raises(RequestError) as caught:
        answer_grammar(spec(protocol, tools=(TOOLS[0], tool)))
    assert caught.value.status == 400
    assert "tools[1].function.parameters" in caught.value.message
    assert keyword in caught.value.message
