"""Streams and whole answers say the same, whatever the events look like."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc import messages
from ipc.messages import TokenLogprob
from sparkinfer.api.chat_reply import ChatReply
from sparkinfer.api.completions_reply import CompletionReply
from sparkinfer.api.reply import Choice
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason, RequestId
from tests.api.parsing import INFO

Delta = tuple[int, str, str, list[TokenLogprob] | None]

NUM_CHOICES = 3
LOGPROB_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def data(stream: bytes) -> list[Any]:
    """The JSON of every event; [DONE] is left as it is."""
    assert stream.endswith(b"\n\n") or not stream
    events = stream.decode().split("\n\n")[:-1]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event[6:] if event == "data: [DONE]" else json.loads(event[6:]) for event in events]


def usage() -> Usage:
    made = Usage()
    made.add_prompt(7)
    for _ in range(NUM_CHOICES):
        made.add_choice(5, 1, 10.0, 60.0)
    return made


def ipc_delta(content: str, reasoning: str, logprobs: list[TokenLogprob] | None) -> messages.Delta:
    return messages.Delta(RequestId(1), 0, content, reasoning, 1, logprobs)


def play(reply: ChatReply | CompletionReply, deltas: list[Delta], echo: str = "") -> tuple[list[Any], dict[str, Any]]:
    """(events of the stream, whole answer) for the same deltas."""
    stream = b"".join(reply.start(index, echo, 7) for index in range(NUM_CHOICES))
    choices = [Choice(index) for index in range(NUM_CHOICES)]
    for index, content, reasoning, logprobs in deltas:
        delta = ipc_delta(content, reasoning, logprobs)
        stream += reply.delta(index, delta)
        choices[index].add(delta)
    for choice in choices:
        choice.echo = echo
        choice.finish_reason = FinishReason.LENGTH if choice.index else FinishReason.STOP
        stream += reply.finish(choice.index, choice.finish_reason)
    stream += reply.end(usage())
    document = json.loads(reply.document(choices, usage()))
    return data(stream), document


token = st.builds(
    TokenLogprob,
    st.integers(0, 999),
    st.binary(min_size=1, max_size=4) | st.text(min_size=1, max_size=2).map(str.encode),
    st.floats(),
    st.lists(st.tuples(st.integers(0, 999), st.binary(min_size=1, max_size=3), st.floats()), max_size=3),
)
delta = st.tuples(
    st.integers(0, NUM_CHOICES - 1), st.text(max_size=4), st.text(max_size=3), st.none() | st.lists(token, max_size=2)
)


@given(st.lists(delta, max_size=12))
@settings(max_examples=120, deadline=None)
def test_streamed_chat_equals_whole_chat(deltas: list[Delta]) -> None:
    events, document = play(ChatReply("ab", 1, INFO), deltas)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == document["usage"]
    chunks = events[:-2]
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in chunks} == {
        ("chatcmpl-ab", "chat.completion.chunk", 1, "tiny")
    }
    for choice in document["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": None}
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        assert own[-1]["delta"] == {}
        message = choice["message"]
        assert "".join(c["delta"].get("content") or "" for c in own) == message["content"]
        for name in ("reasoning", "reasoning_content"):
            assert "".join(c["delta"].get(name, "") for c in own) == message.get(name, "")
        streamed = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert streamed == (choice["logprobs"] or {"content": []})["content"]


@given(st.lists(delta, max_size=12), st.text(max_size=5))
@settings(max_examples=120, deadline=None)
def test_streamed_completion_equals_whole_completion(deltas: list[Delta], echo: str) -> None:
    events, document = play(CompletionReply("ab", 1, INFO), deltas, echo)
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"] == document["usage"]
    for choice in document["choices"]:
        own = [c["choices"][0] for c in events[:-2] if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert choice["text"].startswith(echo)
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        whole = choice["logprobs"] or {name: [] for name in LOGPROB_LISTS}
        for name, values in whole.items():
            assert [value for c in own if c["logprobs"] for value in c["logprobs"][name]] == values


def test_reasoning_goes_first_and_under_both_names() -> None:
    reply = ChatReply("ab", 1, INFO)
    reply.start(0, "", 7)
    first, second = data(reply.delta(0, ipc_delta("answer", "thought", None)))
    assert first["choices"][0]["delta"] == {"reasoning": "thought", "reasoning_content": "thought"}
    assert second["choices"][0]["delta"] == {"content": "answer"}


def test_reasoning_carries_its_own_logprobs() -> None:
    reply = ChatReply("ab", 1, INFO)
    reply.start(0, "", 7)
    (event,) = data(reply.delta(0, ipc_delta("", "thought", [TokenLogprob(5, b"thought", -1.0, [])])))
    choice = event["choices"][0]
    assert choice["delta"] == {"reasoning": "thought", "reasoning_content": "thought"}
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["thought"]
    (event,) = data(reply.delta(0, ipc_delta("", "", [TokenLogprob(6, b"", -1.0, [])])))
    assert event["choices"][0]["delta"] == {"content": ""}


def test_excluded_reasoning_never_appears() -> None:
    events, document = play(
        ChatReply("ab", 1, INFO, exclude_reasoning=True), [(0, "", "secret", None), (0, "x", "y", None)]
    )
    assert "reasoning" not in document["choices"][0]["message"]
    assert not any("reasoning" in c["choices"][0]["delta"] for c in events[:-2] if c["choices"])
    assert document["choices"][0]["message"]["content"] == "x"


def test_nothing_new_is_no_chunk() -> None:
    for reply in (ChatReply("ab", 1, INFO), CompletionReply("ab", 1, INFO)):
        reply.start(0, "", 7)
        assert reply.delta(0, ipc_delta("", "", None)) == b""
        assert reply.end(None) == b"data: [DONE]\n\n"


def test_a_failed_stream_says_why_and_ends() -> None:
    error = RequestError(503, "gone", code="worker_lost")
    for reply in (ChatReply("ab", 1, INFO), CompletionReply("ab", 1, INFO)):
        event, done = data(reply.failure(error))
        assert event == {"error": {"message": "gone", "type": "server_error", "param": None, "code": "worker_lost"}}
        assert done == "[DONE]"


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf, -1e6])
def test_logprobs_are_always_numbers(value: float) -> None:
    entry = TokenLogprob(5, b"a", value, [(6, b"b", value)])
    _, document = play(ChatReply("ab", 1, INFO), [(0, "a", "", [entry])])
    (item,) = document["choices"][0]["logprobs"]["content"]
    assert item == {
        "token": "a", "token_id": 5, "logprob": -9999.0, "bytes": [97],
        "top_logprobs": [{"token": "b", "token_id": 6, "logprob": -9999.0, "bytes": [98]}],
    }  # fmt: skip


def test_offsets_of_completion_logprobs_count_characters() -> None:
    pieces = [b"\xc3", b"\xa9", "日本".encode(), b"x"]
    entries = [TokenLogprob(i, piece, -1.0, [(i, piece, -1.0), (9, b"\xff", -2.0)]) for i, piece in enumerate(pieces)]
    _, document = play(CompletionReply("ab", 1, INFO), [(0, "é日本x", "", entries)], "é!")
    logprobs = document["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [2, 2, 3, 5]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "日本", "x"]
    assert logprobs["top_logprobs"][3] == {"x": -1.0, "bytes:\\xff": -2.0}


def test_usage() -> None:
    assert usage().to_json() == {
        "prompt_tokens": 7, "completion_tokens": 15, "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 3},
        "ttft_ms": 10.0, "generation_ms": 60.0, "decode_tps": 300.0,
    }  # fmt: skip


def test_decode_speed_counts_at_least_one_millisecond() -> None:
    instant = Usage()
    instant.add_choice(4, 0, 5.0, 5.0)
    assert instant.to_json()["decode_tps"] == 4000.0
