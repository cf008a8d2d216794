from __future__ import annotations

import msgspec
import pytest

from ipc import codec
from ipc.codec import MalformedMessage
from ipc.messages import (
    Abort,
    Count,
    Delta,
    Drain,
    Failed,
    Finished,
    Generate,
    PeerDown,
    PeerUp,
    SequenceQueued,
    Started,
    Submit,
    Tokenized,
    TokenLogprob,
)
from sparkinfer.request import ChatPrompt, Message, Request, TextPrompt, TokenPrompt, Tool, ToolCall
from sparkinfer.sampling_params import SamplingParams

SAMPLING = SamplingParams(max_tokens=8, logit_bias={5: -100.0}, seed=2**63, stop_token_ids=(1, 2), logprobs=3)
CHAT = ChatPrompt(
    messages=(
        Message(role="user", content="Wie spät ist es in 東京?"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="time", arguments='{"zone": "JST"}'),)),
        Message(role="tool", content="12:00", tool_call_id="c1"),
    ),
    tools=(Tool(name="time", definition='{"type": "function", "function": {"name": "time"}}', strict=True),),
    template_kwargs={"enable_thinking": False},
)
PEERS = [PeerUp("gpu-0", 1), PeerDown("gpu-0", 1)]
INBOXES = [
    (codec.HTTP_INBOX, [*PEERS, Drain(5.0)]),
    (
        codec.TEXT_INBOX,
        [
            *PEERS,
            Submit(Request(request_id=2**64 - 1, prompt=CHAT, sampling=SAMPLING, n=2, stop=("\n\n",)), 3, 1),
            Submit(Request(request_id=1, prompt=TokenPrompt(token_ids=(1, 2)), sampling=SAMPLING), 0, 2),
            Count(7, TextPrompt(text=""), 1),
            Abort(9),
        ],
    ),
    (
        codec.GPU_INBOX,
        [
            *PEERS,
            Generate(
                request_id=1, reply_to=0, generation=1, prompt_token_ids=b"\1\0\0\0", sampling=SAMPLING, n=2,
                sent_at=1.5,
            ),
            Abort(9),
        ],
    ),
]


@pytest.mark.parametrize(("decoder", "messages"), INBOXES, ids=[decoder.name for decoder, _ in INBOXES])
def test_every_message_of_an_inbox_survives(decoder, messages):
    for message in messages:
        assert decoder.decode(codec.encode(message)) == message


def test_text_events_survive():
    logprob = TokenLogprob(5, b"\xf0\x9f", -0.5, [(5, b"\xf0\x9f", -0.5), (6, b"a", -1.0)])
    events = [
        Started(1, 10, "echo"),
        Delta(1, 0, "text", "", 2, [logprob]),
        Delta(1, 0, "", "because", 1),
        Finished(1, 0, 1, 3, 1, 0, 1.5, 20.0, "\n\n"),
        Failed(2, 400, "no", "messages", "context_length_exceeded"),
        Tokenized(3, [1, 2, 3]),
    ]
    assert codec.TEXT_EVENTS.decode(codec.encode(events)) == events
    assert codec.TEXT_EVENTS.decode(memoryview(codec.encode(events))) == events


def test_message_for_another_inbox_is_named():
    with pytest.raises(MalformedMessage, match="GpuInbox: malformed message 'drain'"):
        codec.GPU_INBOX.decode(codec.encode(Drain(5.0)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"type": "abort", "request_id": "5"}, r"message 'abort'.*`int`.*request_id"),
        ({"type": "abort"}, r"message 'abort'.*missing required field `request_id`"),
        ({"type": "launch"}, r"message 'launch'"),
        ({}, r"message of 1 bytes"),
        ([1, 2], r"message of 3 bytes"),
    ],
)
def test_wrong_content_is_named(content, complaint):
    with pytest.raises(MalformedMessage, match="TextInbox: malformed " + complaint):
        codec.TEXT_INBOX.decode(msgspec.msgpack.encode(content))


@pytest.mark.parametrize("payload", [b"", b"\xc1", codec.encode(Abort(1))[:-1]])
def test_bytes_that_are_no_msgpack_are_refused(payload):
    with pytest.raises(MalformedMessage, match=f"TextInbox: malformed message of {len(payload)} bytes"):
        codec.TEXT_INBOX.decode(payload)


def test_sequence_events_are_not_text_events():
    frame = codec.encode([SequenceQueued(1)])
    assert codec.SEQUENCE_EVENTS.decode(frame) == [SequenceQueued(1)]
    with pytest.raises(MalformedMessage, match="TextEvents"):
        codec.TEXT_EVENTS.decode(frame)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_lone_surrogates_cannot_be_encoded(text):
    """What JSON lets through as an escape has no UTF-8; the API layer has to replace it."""
    with pytest.raises(UnicodeEncodeError):
        codec.encode(Count(1, TextPrompt(text=text), 0))
