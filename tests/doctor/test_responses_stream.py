"""The checker of Responses streams: silent on a good one, and not on any broken one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.sse_events import SseEvent

MESSAGE = {"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "ab"}]}
REASONING = {"id": "rs_1", "type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]}
CALL = {"id": "fc_1", "type": "function_call", "arguments": "{}"}
CUSTOM = {"id": "ctc_1", "type": "custom_tool_call", "input": "x"}


def of_text(item: dict[str, Any], index: int, kind: str, *deltas: str) -> list[dict[str, Any]]:
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item | {"content": []}},
        {"type": "response.content_part.added", **where},
        *({"type": f"response.{kind}.delta", **where, **extra, "delta": delta} for delta in deltas),
        {"type": f"response.{kind}.done", **where, **extra, "text": "".join(deltas)},
        {"type": "response.content_part.done", **where},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def of_call(item: dict[str, Any], index: int, kind: str, key: str, text: str) -> list[dict[str, Any]]:
    where = {"item_id": item["id"], "output_index": index}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item | {key: ""}},
        {"type": f"response.{kind}.delta", **where, "delta": text},
        {"type": f"response.{kind}.done", **where, key: text},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


GOOD: list[dict[str, Any]] = [
    {"type": "response.created"},
    {"type": "response.in_progress"},
    *of_text(REASONING, 0, "reasoning_text", "r"),
    *of_text(MESSAGE, 1, "output_text", "a", "b"),
    *of_call(CALL, 2, "function_call_arguments", "arguments", "{}"),
    *of_call(CUSTOM, 3, "custom_tool_call_input", "input", "x"),
    {"type": "response.completed",
     "response": {"output": [REASONING, MESSAGE, CALL, CUSTOM], "usage": {"total_tokens": 1}, "error": None}},
]  # fmt: skip
FAILED = {"type": "response.failed", "response": {"error": {"code": "x"}}}


def problems(*events: dict[str, Any]) -> list[str]:
    numbered = [copy.deepcopy(event) | {"sequence_number": i} for i, event in enumerate(events)]
    return check_responses_stream([SseEvent(event["type"], event) for event in numbered])


def test_good_streams() -> None:
    assert problems(*GOOD) == []
    assert problems(*GOOD[:5], {"type": "response.in_progress"}, *GOOD[5:]) == []
    assert problems(*GOOD[:5], {"type": "error"}, FAILED) == []


@pytest.mark.parametrize("at", [i for i, event in enumerate(GOOD) if event["type"] != "response.in_progress"])
def test_nothing_may_be_missing(at: int) -> None:
    assert problems(*GOOD[:at], *GOOD[at + 1:])


@pytest.mark.parametrize("at", [i for i, event in enumerate(GOOD) if event["type"] != "response.in_progress"])
def test_nothing_may_come_twice(at: int) -> None:
    assert problems(*GOOD[:at + 1], *GOOD[at:])


@pytest.mark.parametrize("at", range(2, len(GOOD) - 1))
def test_order_matters(at: int) -> None:
    assert problems(*GOOD[:at], GOOD[at + 1], GOOD[at], *GOOD[at + 2:])


def changed(at: int, **fields: Any) -> list[dict[str, Any]]:
    return [*GOOD[:at], GOOD[at] | fields, *GOOD[at + 1:]]


DELTA = next(i for i, event in enumerate(GOOD) if event["type"] == "response.output_text.delta")


@pytest.mark.parametrize(
    "broken",
    [
        changed(DELTA, delta="z"),
        changed(DELTA, item_id="msg_2"),
        changed(DELTA, output_index=0),
        changed(DELTA, logprobs=None),
        changed(DELTA, type="response.reasoning_text.delta"),
        changed(DELTA, type="response.banana"),
        changed(len(GOOD) - 1, response={"output": [], "usage": {"total_tokens": 1}, "error": None}),
        changed(len(GOOD) - 1, response=GOOD[-1]["response"] | {"usage": None}),
        [*GOOD, {"type": "response.in_progress"}],
        [GOOD[0], {"type": "response.failed", "response": {"error": None}}],
        [],
    ],
)
def test_broken_streams(broken: list[dict[str, Any]]) -> None:
    assert problems(*broken)


def test_numbers_and_names() -> None:
    events = [SseEvent(event["type"], event | {"sequence_number": i}) for i, event in enumerate(GOOD)]
    assert check_responses_stream(events) == []
    assert check_responses_stream([SseEvent("", event.data) for event in events]) == []
    assert check_responses_stream([SseEvent("x", event.data) for event in events])
    assert check_responses_stream([SseEvent(e.name, e.data | {"sequence_number": 0}) for e in events])
    assert check_responses_stream([*events, SseEvent("", "[DONE]")])
