"""One choice from tokens to text: nothing is lost, nothing depends on how often the text is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.choice_stream import ChoiceStream, ReplyFormat, StreamOptions, TextDelta
from sparkinfer.text.content_filter import ContentOptions
from sparkinfer.text.entry_pairing import TokenEntry
from sparkinfer.text.token_types import TokenType
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOffer
from sparkinfer.text.vocabulary import Vocabulary


def stopping(stop: str) -> StreamOptions:
    return StreamOptions(ContentOptions(stop=(stop,) if stop else ()))


THINK = StreamOptions(reply_format=ReplyFormat.THINK)


def run(tokenizer: Tokenizer, options: StreamOptions, token_ids: list[int], takes: list[bool]) -> list[TextDelta]:
    """All deltas; takes[i]: whether text is collected after token i."""
    stream = ChoiceStream(tokenizer, options)
    deltas = []
    for i, token_id in enumerate(token_ids):
        stream.push(token_id, TokenEntry(token_id, -1.0, []))
        if takes[i % len(takes)]:
            deltas += stream.take()
    return deltas + stream.finish()


def joined(deltas: list[TextDelta]) -> tuple[str, str, int, list[int]]:
    return (
        "".join(d.content for d in deltas),
        "".join(d.reasoning for d in deltas),
        sum(d.num_tokens for d in deltas),
        [entry.token_id for d in deltas for entry in d.entries],
    )


REPLIES = st.text(st.sampled_from("ab \n<>/think€😀"), max_size=30)


@settings(max_examples=150, deadline=None)
@given(reasoning=REPLIES, content=REPLIES, stop=st.sampled_from(["", "ab", "think", "\n\n"]),
       takes=st.lists(st.booleans(), min_size=1, max_size=9))
def test_how_often_text_is_taken_changes_nothing(
    smollm2: Tokenizer, reasoning: str, content: str, stop: str, takes: list[bool]
) -> None:
    token_ids = smollm2.encode(f"<think>{reasoning}</think>{content}")
    options = replace(THINK, content=stopping(stop).content)
    assert joined(run(smollm2, options, token_ids, takes)) == joined(run(smollm2, options, token_ids, [False]))


def test_every_token_is_counted_and_has_its_entry(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("Smiles 😀 cost nothing.")
    content, _, num_tokens, entries = joined(run(smollm2, StreamOptions(), token_ids, [True]))
    assert content == "Smiles 😀 cost nothing."
    assert (num_tokens, entries) == (len(token_ids), token_ids)


def text_of(tokenizer: Tokenizer, deltas: list[TextDelta]) -> str:
    data = b"".join(tokenizer.token_bytes(entry.token_id) for d in deltas for entry in d.entries)
    return data.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(
    text=REPLIES,
    stop=st.sampled_from(["", "ab", "a\n", "€"]),
    takes=st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_each_delta_carries_the_entries_of_its_text(
    smollm2: Tokenizer, text: str, stop: str, takes: list[bool]
) -> None:
    """At every point of the stream the entries so far spell the text so far, but for a last token cut in two."""
    token_ids = smollm2.encode(text)
    deltas = run(smollm2, stopping(stop), token_ids, takes)
    shown = ""
    for i, delta in enumerate(deltas):
        shown += delta.content
        spelled = text_of(smollm2, deltas[: i + 1])
        if delta is not deltas[-1]:
            assert shown.startswith(spelled)
            entries = sum(len(d.entries) for d in deltas[: i + 1])
            assert len(shown) < len(smollm2.decode(token_ids[: entries + 1])) or smollm2.decode(token_ids) == shown
    if not stop or stop not in text:
        assert text_of(smollm2, deltas) == shown == text


@settings(max_examples=150, deadline=None)
@given(reasoning=st.text("ab €😀", min_size=1, max_size=20), content=st.text("ab €", min_size=1, max_size=20),
       takes=st.lists(st.booleans(), min_size=1, max_size=9))
def test_reasoning_and_content_carry_their_own_entries(
    smollm2: Tokenizer, reasoning: str, content: str, takes: list[bool]
) -> None:
    ids = [smollm2.encode(part) for part in (reasoning, "</think>", content)]
    deltas = run(smollm2, replace(THINK, starts_in_reasoning=True), [i for part in ids for i in part], takes)
    assert not any(delta.content and delta.reasoning for delta in deltas)
    of_reasoning = [entry.token_id for delta in deltas if delta.reasoning for entry in delta.entries]
    of_content = [entry.token_id for delta in deltas if delta.content for entry in delta.entries]
    assert of_reasoning[: len(ids[0])] == ids[0]
    assert of_content[-len(ids[2]):] == ids[2]
    assert of_reasoning + of_content == ids[0] + ids[1] + ids[2]


def test_tokens_without_text_keep_their_entries(smollm2: Tokenizer) -> None:
    """They go on a last delta without text."""
    token_ids = [*smollm2.encode("Hi"), *[i for i in range(20) if smollm2.is_special(i)][:2]]
    *_, last = run(smollm2, StreamOptions(), token_ids, [True])
    assert (last.content, last.reasoning, [entry.token_id for entry in last.entries]) == ("", "", token_ids[-2:])


def test_the_token_that_completes_a_stop_string_has_no_entry(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("one two three")
    for takes in ([True], [False]):
        content, _, num_tokens, entries = joined(run(smollm2, stopping(" two"), token_ids, takes))
        assert (content, num_tokens, entries) == ("one", 2, token_ids[:1])


def test_reasoning_is_split_off_and_counted(smollm2: Tokenizer) -> None:
    stream = ChoiceStream(smollm2, replace(THINK, starts_in_reasoning=True))
    for token_id in smollm2.encode("First this.\n</think>\n\nThen that."):
        stream.push(token_id)
    (delta,) = stream.take()
    assert (delta.reasoning, delta.content) == ("First this.", "Then that.")
    assert 0 < stream.num_reasoning_tokens < stream.num_tokens


def test_stop_strings_act_on_content_only(smollm2: Tokenizer) -> None:
    options = replace(THINK, content=stopping("END").content, starts_in_reasoning=True)
    deltas = run(smollm2, options, smollm2.encode("not END here</think>but END there"), [True])
    assert joined(deltas)[:2] == ("but ", "not END here")


def test_tokens_after_a_stop_string_are_ignored(smollm2: Tokenizer) -> None:
    stream = ChoiceStream(smollm2, stopping("two"))
    token_ids = smollm2.encode("one two three four")
    for token_id in token_ids:
        stream.push(token_id)
    assert stream.stop_string == "two"
    assert stream.num_tokens < len(token_ids)
    (delta,) = stream.finish()
    assert delta.content == "one "


@pytest.mark.parametrize("takes", [[True], [False], [False, True, True]])
def test_muse_segments(takes: list[bool]) -> None:
    """Recipients and markers are control tokens: seen by the parser, never by the client."""
    words = ["<|start|>", "<|message|>", "<|eom|>", "Ġto=self", "Ġto=user", "assistant", "hmm", "Hello"]
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 5
    vocabulary = Vocabulary(words, [int(kind) for kind in types], byte_level=True)
    tokenizer = Tokenizer.__new__(Tokenizer)
    tokenizer.vocabulary = vocabulary
    tokenizer._bytes = [vocabulary.token_bytes(i) for i in range(len(words))]
    tokenizer._is_special = [vocabulary.is_special(i) for i in range(len(words))]
    tokenizer._whole_texts = {}
    reply = [3, 1, 6, 2, 0, 5, 4, 1, 7]
    content, reasoning, _, _ = joined(run(tokenizer, StreamOptions(reply_format=ReplyFormat.SEGMENTS), reply, takes))
    assert (content, reasoning) == ("Hello", "hmm")


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x}"}}\n</tool_call>'
OFFER = ToolOffer((OfferedTool("f", {"type": "object"}, is_live=True),))


@settings(max_examples=100, deadline=None)
@given(content=st.text("ab €\n<", max_size=12), count=st.integers(0, 2), takes=st.lists(st.booleans(), min_size=1),
       stop=st.sampled_from(["", "b€"]))
def test_calls_stream_behind_content_with_all_entries(
    smollm2: Tokenizer, content: str, count: int, takes: list[bool], stop: str
) -> None:
    """Entries keep their order and none is lost; content, calls and their markup have those of their own tokens."""
    options = StreamOptions(ContentOptions((stop,) if stop else (), OFFER))
    token_ids = smollm2.encode("<think>" + content + "\n".join([CALL] * count))
    deltas = run(smollm2, options, token_ids, takes)
    reference = run(smollm2, options, token_ids, [False])
    assert joined(deltas) == joined(reference)
    calls = [call for delta in deltas for call in delta.tool_calls]
    stopped = bool(stop) and stop in content
    assert "".join(call.arguments for call in calls) == ('{"a": "x}"}' * count if not stopped else "")
    assert [call.index for call in calls if call.name] == list(range(0 if stopped else count))
    for delta in deltas:
        assert not (delta.content and delta.tool_calls)
    if not stopped:
        assert joined(deltas)[3] == token_ids
        before = [entry.token_id for delta in deltas if delta.content for entry in delta.entries]
        shown, spelled = joined(deltas)[0], smollm2.decode(before)
        assert len(shown) < len(smollm2.decode(token_ids[: len(before) + 1])) or shown == spelled
        assert spelled.startswith(shown) or shown.startswith(spelled)


def test_calls_come_in_one_delta_with_the_content_before_them(smollm2: Tokenizer) -> None:
    stream = ChoiceStream(smollm2, StreamOptions(ContentOptions(offer=OFFER)))
    for token_id in smollm2.encode("Well. " + CALL):
        stream.push(token_id)
    (delta,) = stream.take()
    assert (delta.content, [call.name for call in delta.tool_calls if call.name]) == ("Well.", ["f"])
    assert (stream.num_calls, stream.finish()) == (1, [])


def test_a_reply_that_breaks_the_rules_ends_there(smollm2: Tokenizer) -> None:
    stream = ChoiceStream(smollm2, StreamOptions(ContentOptions(offer=OFFER)))
    for token_id in smollm2.encode(CALL + " more"):
        stream.push(token_id)
    assert stream.failure is not None
    assert stream.failure.status == 502
    num_tokens = stream.num_tokens
    stream.push(1)
    assert (stream.num_tokens, stream.has_ended) == (num_tokens, True)
