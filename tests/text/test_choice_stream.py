"""One choice from tokens to text: nothing is lost, nothing depends on how often the text is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.text.choice_stream import ChoiceStream, ReplyFormat, StreamOptions, TextDelta, TokenEntry
from sparkinfer.text.tokenizer import Tokenizer
from sparkinfer.text.vocabulary import TokenType, Vocabulary

THINK = StreamOptions(reply_format=ReplyFormat.THINK)


def run(tokenizer: Tokenizer, options: StreamOptions, token_ids: list[int], takes: list[bool]) -> list[TextDelta]:
    """All deltas; takes[i]: whether text is collected after token i."""
    stream = ChoiceStream(tokenizer, options)
    deltas = []
    for i, token_id in enumerate(token_ids):
        stream.push(token_id, TokenEntry(token_id, -1.0, []))
        if takes[i % len(takes)] and (delta := stream.take()) is not None:
            deltas.append(delta)
    if (last := stream.finish()) is not None:
        deltas.append(last)
    return deltas


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
    options = replace(THINK, stop=(stop,) if stop else ())
    assert joined(run(smollm2, options, token_ids, takes)) == joined(run(smollm2, options, token_ids, [False]))


def test_every_token_is_counted_and_has_its_entry(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("Smiles 😀 cost nothing.")
    content, _, num_tokens, entries = joined(run(smollm2, StreamOptions(), token_ids, [True]))
    assert content == "Smiles 😀 cost nothing."
    assert (num_tokens, entries) == (len(token_ids), token_ids)


def test_reasoning_is_split_off_and_counted(smollm2: Tokenizer) -> None:
    stream = ChoiceStream(smollm2, replace(THINK, starts_in_reasoning=True))
    for token_id in smollm2.encode("First this.\n</think>\n\nThen that."):
        stream.push(token_id)
    delta = stream.take()
    assert delta is not None
    assert (delta.reasoning, delta.content) == ("First this.", "Then that.")
    assert 0 < stream.num_reasoning_tokens < stream.num_tokens


def test_stop_strings_act_on_content_only(smollm2: Tokenizer) -> None:
    options = replace(THINK, stop=("END",), starts_in_reasoning=True)
    deltas = run(smollm2, options, smollm2.encode("not END here</think>but END there"), [True])
    assert joined(deltas)[:2] == ("but ", "not END here")


def test_tokens_after_a_stop_string_are_ignored(smollm2: Tokenizer) -> None:
    stream = ChoiceStream(smollm2, StreamOptions(stop=("two",)))
    token_ids = smollm2.encode("one two three four")
    for token_id in token_ids:
        stream.push(token_id)
    assert stream.stop_string == "two"
    assert stream.num_tokens < len(token_ids)
    delta = stream.finish()
    assert delta is not None
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
