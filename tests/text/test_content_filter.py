"""Content between the reasoning and the client: calls, stop strings and forms at every cut."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.errors import RequestError
from sparkinfer.request import ToolCallDelta, ToolPolicy
from sparkinfer.text.content_filter import ContentFilter, ContentOptions
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOffer
from tests.text.tool_protocols.replies import cut

NOW = '<tool_call>{"name": "now", "arguments": {"at": "noon"}}</tool_call>'
TOOL = OfferedTool("now", {"type": "object", "properties": {"at": {"type": "string"}}}, is_live=True)
OFFER = ToolOffer((TOOL,))


def run(
    options: ContentOptions, text: str, length: int, *, is_complete: bool = True
) -> tuple[str, list[ToolCallDelta], str | None, RequestError | None]:
    """Content, calls, the stop string that matched, the failure."""
    content_filter = ContentFilter(options)
    content, calls = "", []
    for piece in cut(text, [length]):
        if content_filter.has_ended:
            break
        content += content_filter.push(piece)
        calls += content_filter.take_calls()
    content += content_filter.flush(is_complete=is_complete)
    return content, calls, content_filter.stop_string, content_filter.failure


def arguments(calls: list[ToolCallDelta]) -> str:
    return "".join(call.arguments for call in calls)


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
def test_stop_strings_end_content_and_are_not_looked_for_in_calls(length: int) -> None:
    options = ContentOptions(stop=("noon", "\n\n"), offer=OFFER)
    content, calls, stop, failure = run(options, f"At nine.\n {NOW}", length)
    assert (content, arguments(calls), stop, failure) == ("At nine.", '{"at": "noon"}', None, None)
    content, calls, stop, _ = run(options, f"At noon. {NOW}", length)
    assert (content, calls, stop) == ("At ", [], "noon")


@pytest.mark.parametrize("length", [1, 1000])
def test_the_beginning_of_a_stop_string_before_a_call_is_content(length: int) -> None:
    content, calls, stop, _ = run(ContentOptions(stop=("abc",), offer=OFFER), f"ab{NOW}", length)
    assert (content, stop) == ("ab", None)
    assert calls


def as_is(text: str) -> str | None:
    return None if text == '{"a": 1}' else "it is something else"


@pytest.mark.parametrize("length", [1, 1000])
def test_a_form_that_no_grammar_holds_is_checked_whole(length: int) -> None:
    options = ContentOptions(has_format=True, check=as_is)
    assert run(options, '{"a": 1}', length)[0] == '{"a": 1}'
    content, _, _, failure = run(options, '{"a": 2}', length)
    assert content == ""
    assert (failure.status, failure.code) == (502, "invalid_json_output")
    assert run(options, '{"a"', length, is_complete=False)[::3] == ('{"a"', None)


def test_nothing_is_shown_before_the_check_and_all_of_it_once_a_grammar_holds_it() -> None:
    options = ContentOptions(has_format=True, check=as_is)
    assert ContentFilter(options).push('{"a"') == ""
    assert ContentFilter(options.enforced(["everything"])).push('{"a"') == ""
    assert ContentFilter(options.enforced(["response_format.json_schema.schema: oneOf"])).push('{"a"') == ""
    assert ContentFilter(options.enforced(["tools[0].function.parameters: oneOf"])).push('{"a"') == '{"a"'
    assert ContentFilter(options.enforced([])).push('{"a"') == '{"a"'


def test_a_stop_string_releases_what_waits_for_its_check() -> None:
    options = ContentOptions(stop=("STOP",), has_format=True, check=as_is)
    assert run(options, '{"a" STOP', 3)[:3] == ('{"a" ', [], "STOP")


LIVE: list[tuple[list[str], tuple[bool, bool]]] = [
    ([], (True, True)),
    (["everything"], (False, False)),
    (["tools[1].function.parameters: oneOf"], (True, False)),
    (["tools[10].function.parameters: oneOf"], (True, True)),
    (["response_format.json_schema.schema: oneOf"], (True, True)),
]


@pytest.mark.parametrize(("approximations", "live"), LIVE)
def test_calls_are_live_where_the_grammar_is_exact(approximations: list[str], live: tuple[bool, bool]) -> None:
    tools = tuple(OfferedTool(name, {}, is_live=False) for name in ("a", "b"))
    offer = ContentOptions(offer=ToolOffer(tools)).enforced(approximations).offer
    assert tuple(tool.is_live for tool in offer.tools) == live


FAILURES: list[tuple[ToolPolicy, str, str]] = [
    (ToolPolicy(choice="required"), "no", "called no function"),
    (ToolPolicy(), NOW[:-3], "did not finish a call"),
    (ToolPolicy(), NOW + "more", "behind the model's call"),
    (ToolPolicy(choice="none"), NOW, "none may be called"),
    (ToolPolicy(), NOW.replace("now", "then"), "not offered"),
]


@pytest.mark.parametrize(("policy", "text", "problem"), FAILURES)
def test_what_cannot_be_used(policy: ToolPolicy, text: str, problem: str) -> None:
    options = ContentOptions(offer=ToolOffer((TOOL,), policy))
    failure: Any = run(options, text, 5)[3]
    assert problem in failure.message
    assert (failure.status, failure.code) == (502, "invalid_tool_output")
    if "finish" in problem or "no function" in problem:
        assert run(options, text, 5, is_complete=False)[3] is None
