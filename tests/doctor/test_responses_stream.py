"""The checker of Responses streams: silent on a good one, and not on any broken one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sparkinfer.doctor.responses_stream import check_responses_stream
from sparkinfer.doctor.sse_events import SseEvent

MESSAGE = {"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "ab"}]}
REASONING = {"id": "rs_1", "type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]}
CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CUSTOM = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}


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
    {"type": "response.created", "response": {"id": "resp_1"}},
    {"type": "response.in_progress", "response": {"id": "resp_1"}},
    *of_text(REASONING, 0, "reasoning_text", "r"),
    *of_text(MESSAGE, 1, "output_text", "a", "b"),
    *of_call(CALL, 2, "function_call_arguments", "arguments", "{}"),
    *of_call(CUSTOM, 3, "custom_tool_call_input", "input", "x"),
    {"type": "response.completed",
     "response": {"id": "resp_1", "status": "completed", "output": [REASONING, MESSAGE, CALL, CUSTOM], "error": None,
                  "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}}},
]  # fmt: skip
FAILED = {"type": "response.failed", "response": {"id": "resp_1", "status": "failed", "error": {"code": "x"}}}
RESPONSE = GOOD[-1]["response"]


def problems(*events: dict[str, Any]) -> list[str]:
    numbered = [copy.deepcopy(event) | {"sequence_number": i} for i, event in enumerate(events)]
    return check_responses_stream([SseEvent(event["type"], event) for event in numbered])


def test_good_streams() -> None:
    assert problems(*GOOD) == []
    assert problems(*GOOD[:5], GOOD[1], *GOOD[5:]) == []
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


LAST = len(GOOD) - 1
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
        changed(DELTA, content_index=1),
        changed(DELTA, content_index=None),
        changed(DELTA - 1, content_index=1),
        changed(0, response={}),
        changed(1, response={"id": "resp_2"}),
        changed(LAST, response=RESPONSE | {"output": []}),
        changed(LAST, response=RESPONSE | {"usage": None}),
        changed(LAST, response=RESPONSE | {"usage": RESPONSE["usage"] | {"total_tokens": 4}}),
        changed(LAST, response=RESPONSE | {"usage": {"total_tokens": 3}}),
        changed(LAST, response=RESPONSE | {"id": "resp_2"}),
        changed(LAST, response=RESPONSE | {"status": "failed"}),
        changed(LAST - 1, output_index=7),
        [GOOD[0], GOOD[-1] | {"response": RESPONSE | {"output": []}}],
        [GOOD[0], *of_call(CALL, 0, "function_call_arguments", "arguments", "{bad"), FAILED],
        [GOOD[0], *of_call(CALL | {"arguments": "{bad"}, 0, "function_call_arguments", "arguments", "{bad"), FAILED],
        [GOOD[0], *of_call(CALL | {"name": ""}, 0, "function_call_arguments", "arguments", "{}"), FAILED],
        [GOOD[0], *of_call(CUSTOM | {"call_id": None}, 0, "custom_tool_call_input", "input", "x"), FAILED],
        [*GOOD, GOOD[1]],
        [GOOD[0], FAILED | {"response": FAILED["response"] | {"error": None}}],
        [GOOD[0], FAILED | {"response": FAILED["response"] | {"id": "resp_2"}}],
        [],
    ],
)
def test_broken_streams(broken: list[dict[str, Any]]) -> None:
    assert problems(*broken)


def test_a_call_that_was_cut_may_be_no_json() -> None:
    cut = CALL | {"arguments": "{bad", "status": "incomplete"}
    response = RESPONSE | {"output": [cut], "status": "incomplete"}
    call = of_call(cut, 0, "function_call_arguments", "arguments", "{bad")
    assert problems(GOOD[0], *call, {"type": "response.completed", "response": response}) == []


def test_numbers_and_names() -> None:
    events = [SseEvent(event["type"], event | {"sequence_number": i}) for i, event in enumerate(GOOD)]
    assert check_responses_stream(events) == []
    assert check_responses_stream([SseEvent("", event.data) for event in events]) == []
    assert check_responses_stream([SseEvent("x", event.data) for event in events])
    assert check_responses_stream([SseEvent(e.name, e.data | {"sequence_number": 0}) for e in events])
    assert check_responses_stream([*events, SseEvent("", "[DONE]")])
