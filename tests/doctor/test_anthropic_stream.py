"""The checker of Messages streams: silent on a good one, and not on any broken one."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.doctor.anthropic_stream import check_messages_stream
from sparkinfer.doctor.sse_events import SseEvent, parse_events


def event(kind: str, **fields: Any) -> SseEvent:
    return SseEvent(kind, {"type": kind, **fields})


def start_block(index: int, kind: str) -> SseEvent:
    call = {"id": "toolu_1", "name": "f", "input": {}} if kind == "tool_use" else {}
    return event("content_block_start", index=index, content_block={"type": kind, **call})


def delta(index: int, kind: str) -> SseEvent:
    more = {"partial_json": "{}"} if kind == "input_json_delta" else {}
    return event("content_block_delta", index=index, delta={"type": kind, **more})


def stop_block(index: int) -> SseEvent:
    return event("content_block_stop", index=index)


MESSAGE: dict[str, Any] = {"id": "msg_1", "role": "assistant", "content": [], "usage": {"input_tokens": 5}}
GOOD = [
    event("message_start", message=MESSAGE),
    event("ping"),
    start_block(0, "thinking"), delta(0, "thinking_delta"), delta(0, "signature_delta"), stop_block(0),
    start_block(1, "text"), delta(1, "text_delta"), event("ping"), delta(1, "text_delta"), stop_block(1),
    start_block(2, "tool_use"), delta(2, "input_json_delta"), stop_block(2),
    event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 3}),
    event("message_stop"),
]  # fmt: skip


def ended(*blocks: SseEvent, reason: str = "tool_use") -> list[SseEvent]:
    end = event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 3})
    return [GOOD[0], *blocks, end, GOOD[-1]]


def calling(text: str, **block: Any) -> list[SseEvent]:
    fields = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}} | block
    return [
        event("content_block_start", index=0, content_block=fields),
        event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": text}),
        stop_block(0),
    ]


def test_a_good_stream() -> None:
    assert check_messages_stream(GOOD) == []
    assert check_messages_stream([GOOD[0], start_block(0, "text"), event("error")]) == []


def test_calls_of_good_streams() -> None:
    assert check_messages_stream(ended(*calling('{"a": 1}'))) == []
    assert check_messages_stream(ended(*calling(""))) == []
    assert check_messages_stream(ended(*calling("{bad"), reason="max_tokens")) == []


@pytest.mark.parametrize("at", [i for i, e in enumerate(GOOD) if e.name != "ping" and "delta" not in e.name])
def test_nothing_may_be_missing(at: int) -> None:
    assert check_messages_stream(GOOD[:at] + GOOD[at + 1:])


@pytest.mark.parametrize("at", [i for i, e in enumerate(GOOD) if e.name not in ("ping", "content_block_delta")])
def test_nothing_may_come_twice(at: int) -> None:
    assert check_messages_stream([*GOOD[:at + 1], *GOOD[at:]])


@pytest.mark.parametrize("at", range(len(GOOD) - 1))
def test_order_matters(at: int) -> None:
    swapped = [*GOOD[:at], GOOD[at + 1], GOOD[at], *GOOD[at + 2:]]
    is_harmless = "ping" in (GOOD[at].name, GOOD[at + 1].name) and at > 0
    assert bool(check_messages_stream(swapped)) is not is_harmless


@pytest.mark.parametrize(
    "broken",
    [
        [GOOD[0], start_block(1, "text")],
        [GOOD[0], start_block(0, "text"), delta(0, "thinking_delta")],
        [GOOD[0], start_block(0, "thinking"), delta(0, "signature_delta"), delta(0, "thinking_delta")],
        [GOOD[0], start_block(0, "thinking"), delta(0, "thinking_delta"), stop_block(0)],
        [GOOD[0], start_block(0, "text"), delta(1, "text_delta")],
        [GOOD[0], event("banana")],
        [event("message_start", message=MESSAGE | {"usage": {"input_tokens": 0}})],
        [event("message_start", message=MESSAGE | {"id": ""})],
        [event("message_start", message=MESSAGE | {"role": "user"})],
        [event("message_start", message=MESSAGE | {"content": [{}]})],
        [GOOD[0], event("message_delta", delta={"stop_reason": "end_turn"})],
        ended(),
        ended(*calling("{bad")),
        ended(*calling("[]")),
        ended(*calling("{}", id="")),
        ended(*calling("{}", name=None)),
        ended(*calling("{}", input={"a": 1})),
        [GOOD[0], event("message_delta", delta={"stop_reason": None})],
        [GOOD[0], SseEvent("ping", {"type": "message_stop"})],
        [GOOD[0], SseEvent("", "[DONE]")],
        [*GOOD, event("ping")],
        [],
    ],
)
def test_broken_streams(broken: list[SseEvent]) -> None:
    whole = check_messages_stream(broken)
    assert [problem for problem in whole if not problem.startswith("the stream ended")] or not broken
    assert whole


def test_parsing() -> None:
    text = ": keep-alive\n\nevent: a\ndata: {\"x\": 1}\n\ndata: [DONE]\n\ndata: 1\ndata: 2\n\n"
    assert parse_events(text) == [SseEvent("a", {"x": 1}), SseEvent("", "[DONE]"), SseEvent("", "1\n2")]
