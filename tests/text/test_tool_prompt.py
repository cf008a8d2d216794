"""What the model is told about tools and forms, by templates that know tools and by those that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.request import (
    ChatPrompt,
    ChoiceFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    OutputFormat,
    Tool,
    ToolCall,
    ToolPolicy,
)
from sparkinfer.text.tool_prompt import instructed
from sparkinfer.text.tool_protocols.protocol import ToolDialect, ToolProtocol, tool_dialect

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
HERMES = "{% if tools %}<tool_call>{{ tools }} arguments{% endif %}"
MUSE = "{{ tools }}<atem:function_calls>"
NATIVE = ToolDialect(ToolProtocol.QWEN_XML, is_native=True)
GENERIC = ToolDialect(ToolProtocol.HERMES, is_native=False)
TOOL = Tool(name="look", definition='{"type": "function", "function": {"name": "look"}}')
OTHER = Tool(name="see", definition='{"type": "function", "function": {"name": "see"}}')
SYSTEM = Message(role="system", content="Be brief.")
USER = Message(role="user", content="hi")
AUTO = ToolPolicy()


def prompt(*messages: Message, tools: tuple[Tool, ...] = (TOOL, OTHER)) -> ChatPrompt:
    return ChatPrompt(messages=messages, tools=tools)


DIALECTS: list[tuple[str | None, str, ToolDialect]] = [
    ((TEMPLATES / "chatml_strict.jinja").read_text(), "auto", NATIVE),
    (HERMES, "auto", ToolDialect(ToolProtocol.HERMES, is_native=True)),
    (MUSE, "auto", ToolDialect(ToolProtocol.MUSE, is_native=True)),
    ("{{ messages }}", "auto", GENERIC),
    ("{{ tools }}[TOOL_CALLS]", "auto", GENERIC),
    (None, "auto", GENERIC),
    (HERMES, "hermes", ToolDialect(ToolProtocol.HERMES, is_native=True)),
    (HERMES, "qwen_xml", ToolDialect(ToolProtocol.QWEN_XML, is_native=False)),
]


@pytest.mark.parametrize(("template", "override", "dialect"), DIALECTS)
def test_the_template_tells_the_protocol(template: str | None, override: str, dialect: ToolDialect) -> None:
    assert tool_dialect(template, override) == dialect


def system_text(policy: ToolPolicy = AUTO, output_format: OutputFormat | None = None, **fields: Any) -> str:
    made = instructed(prompt(SYSTEM, USER, **fields), policy, output_format, NATIVE)
    assert made.messages[-1] == USER
    return made.messages[0].content or ""


def test_a_plain_request_leaves_the_prompt_alone() -> None:
    assert instructed(prompt(SYSTEM, USER), AUTO, None, NATIVE) == prompt(SYSTEM, USER)
    assert instructed(prompt(USER, tools=()), AUTO, None, GENERIC) == prompt(USER, tools=())


def test_wishes_stand_behind_the_system_text() -> None:
    assert system_text(ToolPolicy(choice="required")) == "Be brief.\n\nYou MUST call a function now."
    assert system_text(ToolPolicy(choice="required", allowed=("look",))).endswith("MUST call a function now: look.")
    assert system_text(ToolPolicy(allowed=("look",))).endswith("no other functions than these: look.")
    assert system_text(ToolPolicy(parallel=False)).endswith("Call at most one function.")
    made = instructed(prompt(USER), ToolPolicy(choice="required"), None, NATIVE)
    assert [m.role for m in made.messages] == ["system", "user"]


def test_forms_are_asked_for() -> None:
    schema = '{"type": "object", "description": "<|im_end|> é"}'
    wish = system_text(output_format=JsonObjectFormat(), tools=())
    assert wish == "Be brief.\n\nAnswer with a JSON object and nothing else."
    assert schema in system_text(output_format=JsonSchemaFormat(schema=schema))
    assert "If you call no function, answer" in system_text(output_format=JsonObjectFormat())
    assert system_text(output_format=ChoiceFormat(("a",)), tools=()) == "Be brief."
    assert "JSON" not in system_text(ToolPolicy(choice="required"), JsonObjectFormat())


def test_functions_that_may_not_be_called_are_not_shown() -> None:
    for dialect in (NATIVE, GENERIC):
        made = instructed(prompt(SYSTEM, USER), ToolPolicy(choice="none"), None, dialect)
        assert (made.messages, made.tools) == ((SYSTEM, USER), ())


CALLED = Message(
    role="assistant",
    content="Sure.",
    tool_calls=(
        ToolCall(id="a", name="look", arguments='{"q": "é", "n": 1}'), ToolCall(id="b", name="see", arguments="{}"),
    ),
)  # fmt: skip
RESULTS = (
    Message(role="tool", content="1", tool_call_id="a"), Message(role="tool", content="2", tool_call_id="b"),
)  # fmt: skip


@pytest.mark.parametrize("tools", [(TOOL, OTHER), ()])
def test_templates_without_tools_get_all_of_it_as_text(tools: tuple[Tool, ...]) -> None:
    made = instructed(prompt(USER, CALLED, *RESULTS, USER, tools=tools), AUTO, None, GENERIC)
    assert made.tools == ()
    *system, _, assistant, results = made.messages
    assert [TOOL.definition in (m.content or "") for m in system] == [True] * bool(tools)
    assert assistant.content == (
        'Sure.\n<tool_call>\n{"name": "look", "arguments": {"q": "é", "n": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "see", "arguments": {}}\n</tool_call>'
    )
    assert not assistant.tool_calls
    assert (results.role, results.content) == (
        "user", "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n\nhi"
    )  # fmt: skip


def test_the_other_form_without_a_template() -> None:
    made = instructed(prompt(USER, CALLED, *RESULTS), AUTO, None, ToolDialect(ToolProtocol.QWEN_XML, is_native=False))
    assert "<function=NAME>" in (made.messages[0].content or "")
    assert "<function=look>\n<parameter=q>\né\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>" in (
        made.messages[2].content or ""
    )
    assert [m.role for m in made.messages] == ["system", "user", "assistant", "user"]


def test_muse_gets_descriptions_and_parameters() -> None:
    made = instructed(prompt(USER), AUTO, None, ToolDialect(ToolProtocol.MUSE, is_native=True))
    assert json.loads(made.tools[0].definition)["function"] == {"description": "", "parameters": {}, "name": "look"}
