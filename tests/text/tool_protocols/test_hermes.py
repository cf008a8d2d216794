"""Calls as JSON: every cut of the text, whatever the strings in it spell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.tool_protocols.call_writer import ToolOutputError
from sparkinfer.text.tool_protocols.protocol import ToolProtocol
from tests.text.tool_protocols.replies import offer, read

HERMES = ToolProtocol.HERMES


def written(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


@pytest.mark.parametrize("lengths", [[1], [2], [3], [5], [17], [1000]])
def test_calls_at_every_cut(lengths: list[int]) -> None:
    arguments = {"text": 'a "}" </tool_call> é😀\n', "count": 3, "tags": ["{", "]"], "box": {"x": "\\"}, "maybe": None}
    text = "Well,\n" + written("every", arguments) + "\n" + written("now", {}) + "\n"
    reply = read(HERMES, text, lengths)
    assert (reply.content, reply.values, reply.num_calls) == ("Well,", [("every", arguments), ("now", {})], 2)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), indent=st.sampled_from([None, 1]),
)  # fmt: skip
def test_the_result_does_not_depend_on_the_cuts(
    arguments: dict[str, Any], lengths: list[int], indent: int | None
) -> None:
    body = json.dumps({"name": "open", "arguments": arguments}, indent=indent)
    assert read(HERMES, f"<tool_call>{body}</tool_call>", lengths).values == [("open", arguments)]


def test_arguments_stream_as_they_are_written() -> None:
    deltas = read(HERMES, written("open", {"text": "one two three"}), [4]).deltas
    assert deltas[0].name == "open"
    assert len(deltas) > 5


def test_other_orders_and_no_arguments() -> None:
    for call in ('{"arguments": {"text": "a"}, "name": "open"}', '{ "name" :\n"open" , "arguments" : {"text":"a"} }'):
        assert read(HERMES, f"<tool_call>{call}</tool_call>", [3]).values == [("open", {"text": "a"})]
    assert read(HERMES, '<tool_call>{"name": "now"}</tool_call>', [3]).values == [("now", {})]


BROKEN = [
    "<tool_call>now</tool_call>", '<tool_call>{"name": now}</tool_call>', '<tool_call>{"name": 5}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"name": "now", "name": "now"}</tool_call>',
    '<tool_call>{"name": "now", "parameters": {}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": []}</tool_call>',
    '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', '<tool_call>{"name": "now"} {}</tool_call>',
    '<tool_call>{"name": "now"}</tool_call> so', '<tool_call>{"name": "gone"}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"a": 01}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"a" 1}}</tool_call>',
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("lengths", [[1], [1000]])
def test_what_breaks_the_protocol_is_an_error(text: str, lengths: list[int]) -> None:
    with pytest.raises(ToolOutputError):
        read(HERMES, text, lengths)


@pytest.mark.parametrize("arguments", ['{"count": 0}', '{"count": 1, "count": 0}', '{"ratio": 1e999}', '{"text": 5}'])
def test_unsure_arguments_are_checked(arguments: str) -> None:
    text = f'<tool_call>{{"name": "every", "arguments": {arguments}}}</tool_call>'
    with pytest.raises(ToolOutputError, match="every"):
        read(HERMES, text, [4], offered=offer(is_live=False))


def test_an_answer_of_a_form_may_spell_a_call() -> None:
    answer = '{"html": "<tool_call>"}'
    assert read(HERMES, answer, [1], calls_come_first=True).content == answer
