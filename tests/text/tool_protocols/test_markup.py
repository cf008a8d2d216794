"""Calls as markup: every type of argument, every cut of the text, and nothing that is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.request import ToolPolicy
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOutputError
from sparkinfer.text.tool_protocols.markup import MUSE_TAGS, QWEN_TAGS, Tags
from sparkinfer.text.tool_protocols.protocol import ToolProtocol
from tests.text.tool_protocols.replies import NOW, offer, read

QWEN, MUSE = ToolProtocol.QWEN_XML, ToolProtocol.MUSE
TAGS = {QWEN: QWEN_TAGS, MUSE: MUSE_TAGS}
PROTOCOLS = (QWEN, MUSE)


def written(tags: Tags, name: str, arguments: dict[str, str]) -> str:
    """The call as a template writes it, values as raw text."""
    lead = tags.value_lead
    body = "".join(f"{tags.key}{k}{tags.tail}{lead}{v}{lead}{tags.end}\n" for k, v in arguments.items())
    return f"{tags.open}\n{tags.head}{name}{tags.tail}\n{body}{tags.foot}\n{tags.close}"


RAW = {
    "text": 'say "hi"\n\\ é😀 <b>&amp; x < 10 </param <<to', "count": "7", "ratio": "-2.5e3", "flag": "true",
    "tags": '["a", "}"]', "box": '{"x": "</parameter>\\n</atem:parameter>"}', "nothing": "null",
    "maybe": "null", "either": "12", "linked": "3",
}  # fmt: skip
VALUES = {
    "text": RAW["text"], "count": 7, "ratio": -2500.0, "flag": True, "tags": ["a", "}"],
    "box": {"x": "</parameter>\n</atem:parameter>"}, "nothing": None, "maybe": None, "either": "12", "linked": 3,
}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("lengths", [[1], [2], [3], [5], [17], [1000], [1, 40]])
def test_every_type_at_every_cut(protocol: ToolProtocol, lengths: list[int]) -> None:
    tags = TAGS[protocol]
    text = "Let me see.\n\n" + written(tags, "every", RAW) + "\n" + written(tags, "now", {}) + "\n"
    reply = read(protocol, text, lengths)
    assert reply.content == "Let me see."
    assert reply.values == [("every", VALUES), ("now", {})]
    assert (reply.num_calls, len(set(reply.ids))) == (2, 2)


VALUE_TEXT = st.text(st.sampled_from(list("ab \n<>/{}[]\",:\\t1-é😀")), max_size=25)


@settings(max_examples=300, deadline=None)
@given(
    text=VALUE_TEXT, maybe=VALUE_TEXT, either=st.sampled_from(["7", "12", "x", "007", '"q"', "tru", "1 2"]),
    box=st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=2),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), protocol=st.sampled_from(PROTOCOLS),
)  # fmt: skip
def test_the_result_does_not_depend_on_the_cuts(
    text: str, maybe: str, either: str, box: dict[str, str], lengths: list[int], protocol: ToolProtocol
) -> None:
    tags = TAGS[protocol]
    call = written(tags, "every", {"text": text, "maybe": maybe, "either": either, "box": json.dumps(box)})
    whole, pieces = read(protocol, call), read(protocol, call, lengths)
    assert pieces.calls == whole.calls
    ((_, values),) = pieces.values
    assert values["text"] == text
    assert values["box"] == box
    assert values["either"] == {"7": 7, '"q"': "q"}.get(either, either)


def test_strings_stream_as_growing_json() -> None:
    call = written(QWEN_TAGS, "every", {"text": 'one "two" three', "count": "12"})
    deltas = read(QWEN, call, [4]).deltas
    assert deltas[0].name == "every"
    sent = ["".join(d.arguments for d in deltas[: i + 1]) for i in range(len(deltas))]
    assert len(deltas) > 5
    assert sent[-1] == '{"text":"one \\"two\\" three","count":12}'
    assert any(text.startswith('{"text":"one') and not text.endswith("}") for text in sent)


@pytest.mark.parametrize("content", ["Use < interface > here", "a <tool", "end \n\n", "<", "x <tool_c> y"])
@pytest.mark.parametrize("lengths", [[1], [3], [100]])
def test_what_only_begins_like_a_call_is_content(content: str, lengths: list[int]) -> None:
    reply = read(QWEN, content, lengths)
    assert (reply.content, reply.calls) == (content, [])


@pytest.mark.parametrize("lengths", [[1], [3], [100]])
@pytest.mark.parametrize(("text", "is_complete", "content"), [
    ("x \n<tool_call", True, "x"), ("<tool_cal", True, ""), ("x <tool", False, "x"), ("Hi.\n<", False, "Hi."),
    ("<tool_call", False, ""), ("a < b", False, "a < b"), ("end \n", False, "end \n"),
])  # fmt: skip
def test_half_a_tag_at_the_end_is_no_content(text: str, is_complete: bool, content: str, lengths: list[int]) -> None:
    assert read(QWEN, text, lengths, is_complete=is_complete).content == content


def test_content_streams_while_no_call_is_in_sight() -> None:
    content = "".join(piece for piece in ("Hello", " there", " <b", ">bold", " "))
    assert read(QWEN, content, [1]).content == content


BROKEN: dict[str, tuple[ToolProtocol, str]] = {
    "unknown function": (QWEN, written(QWEN_TAGS, "delete", {})),
    "argument of a closed function": (QWEN, written(QWEN_TAGS, "every", {"colour": "red"})),
    "argument given twice": (
        QWEN, "<tool_call><function=open>" + 2 * "<parameter=text>a</parameter>" + "</function></tool_call>",
    ),
    "text in a call": (QWEN, "<tool_call>so <function=now></function></tool_call>"),
    "text behind a value": (QWEN, "<tool_call><function=open><parameter=text>a</parameter>b</function></tool_call>"),
    "text behind a call": (QWEN, written(QWEN_TAGS, "now", {}) + " done"),
    "text between calls": (QWEN, written(QWEN_TAGS, "now", {}) + "and" + written(QWEN_TAGS, "now", {})),
    "JSON that is none": (QWEN, written(QWEN_TAGS, "every", {"box": "{x: 1}"})),
    "text behind JSON": (QWEN, written(QWEN_TAGS, "every", {"box": "{} {}"})),
    "a second function in a call": (QWEN, "<tool_call><function=now></function><function=now></function></tool_call>"),
    "a tag without an end": (QWEN, "<tool_call><function=" + "a" * 1000),
    "text in Muse's call": (MUSE, "<atem:function_calls>so"),
    "text behind Muse's call": (MUSE, written(MUSE_TAGS, "now", {}) + " done"),
}  # fmt: skip


@pytest.mark.parametrize(("protocol", "text"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("lengths", [[1], [1000]])
def test_what_breaks_the_protocol_is_an_error(protocol: ToolProtocol, text: str, lengths: list[int]) -> None:
    with pytest.raises(ToolOutputError):
        read(protocol, text, lengths)


WRONG: list[dict[str, str]] = [
    {"count": "0"}, {"count": "11"}, {"tags": "[]"}, {"tags": '["a", "b", "c"]'}, {"code": "AB1"}, {"letter": "ab"},
    {"linked": "L"}, {"count": "1.5"}, {"box": '{"y": "1"}'}, {"box": '{"x": "1", "x": 2}'},
]  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG)
def test_arguments_that_no_grammar_made_sure_of_are_checked_before_anything_is_shown(arguments: dict[str, str]) -> None:
    call = written(QWEN_TAGS, "every", {"flag": "true"} | arguments)
    with pytest.raises(ToolOutputError, match="every"):
        read(QWEN, call, [3], offered=offer(is_live=False))


@pytest.mark.parametrize("letter", ["é", "😀"])
def test_a_checked_call_comes_whole(letter: str) -> None:
    """Lengths count code points."""
    call = written(QWEN_TAGS, "every", {"letter": letter, "code": "ABC"})
    reply = read(QWEN, call, [1], offered=offer(is_live=False))
    assert reply.values == [("every", {"letter": letter, "code": "ABC"})]
    assert len(reply.deltas) == 2


def test_arguments_beyond_the_declared_ones() -> None:
    call = written(QWEN_TAGS, "open", {"text": "1", "more": '{"a": [1]}', "words": "two words"})
    assert read(QWEN, call, [2]).values == [("open", {"text": "1", "more": {"a": [1]}, "words": "two words"})]


def test_a_name_in_another_case_is_the_offered_one() -> None:
    assert read(QWEN, written(QWEN_TAGS, "NOW", {})).values == [("now", {})]
    twins = offer(extra=[OfferedTool("Now", NOW, True)])
    assert read(QWEN, written(QWEN_TAGS, "Now", {}), offered=twins).values == [("Now", {})]
    with pytest.raises(ToolOutputError, match="not offered"):
        read(QWEN, written(QWEN_TAGS, "NOW", {}), offered=twins)


TWO = written(QWEN_TAGS, "open", {"text": "}"}) + "\n" + written(QWEN_TAGS, "now", {})
POLICIES: list[tuple[ToolPolicy, list[tuple[str, Any]]]] = [
    (ToolPolicy(), [("open", {"text": "}"}), ("now", {})]),
    (ToolPolicy(parallel=False), [("open", {"text": "}"})]),
    (ToolPolicy(choice="required", allowed=("now",)), [("now", {})]),
    (ToolPolicy(choice="required", allowed=("every",)), []),
]


@pytest.mark.parametrize(("policy", "calls"), POLICIES)
@pytest.mark.parametrize("is_live", [True, False])
def test_calls_that_were_not_asked_for_are_dropped(
    policy: ToolPolicy, calls: list[tuple[str, Any]], is_live: bool
) -> None:
    reply = read(QWEN, TWO, [5], offered=offer(policy, is_live=is_live))
    assert reply.values == calls
    assert reply.num_calls == len(calls)


def test_no_call_may_be_made_when_none_was_allowed() -> None:
    with pytest.raises(ToolOutputError, match="none may be called"):
        read(QWEN, TWO, offered=offer(ToolPolicy(choice="none")))
    assert read(QWEN, "plain", offered=offer(ToolPolicy(choice="none"))).content == "plain"


def test_an_answer_of_a_form_may_spell_a_call() -> None:
    """Only what stands in its place is one."""
    answer = ' {"html": "<tool_call>"}'
    for lengths in ([1], [100]):
        assert read(QWEN, answer, lengths, calls_come_first=True).content == answer
        assert read(QWEN, "\n" + TWO, lengths, calls_come_first=True).num_calls == 2


def test_muse_calls_share_a_block_or_have_their_own() -> None:
    one = written(MUSE_TAGS, "now", {})
    shared = one.replace(MUSE_TAGS.foot, MUSE_TAGS.foot + '\n<atem:invoke name="open">\n' + MUSE_TAGS.foot)
    assert [name for name, _ in read(MUSE, shared, [7]).calls] == ["now", "open"]
    assert [name for name, _ in read(MUSE, one + one, [7]).calls] == ["now", "now"]


def test_a_call_that_is_cut_off_is_no_call() -> None:
    text = written(QWEN_TAGS, "open", {"text": "a long story"})
    for length in range(15, len(text) - len("</function>\n</tool_call>")):
        assert read(QWEN, text[:length], [4]).num_calls == 0
        assert read(QWEN, text[:length], [4], offered=offer(is_live=False)).deltas == []
