"""The checker of Ollama's streams: silent on a good one, and not on any broken one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkinfer.doctor.ollama_stream import check_ollama_stream

CALL = {"function": {"name": "f", "arguments": {}}}
LAST_KEYS = (
    "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count", "eval_count",
)  # fmt: skip


def line(done: bool = False, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "created_at": "t", "message": {"role": "assistant", "content": ""}, "done": done} | fields


LAST = line(True, done_reason="stop", **dict.fromkeys(LAST_KEYS, 1))
GOOD = [line(), line(message={"role": "assistant", "content": "", "tool_calls": [CALL]}), LAST]


def problems(*lines: Any, is_chat: bool = True) -> list[str]:
    return check_ollama_stream("".join(f"{json.dumps(line)}\n" for line in lines), is_chat=is_chat)


def test_good_streams() -> None:
    assert problems(*GOOD) == []
    assert problems(line(), {"error": "gone"}) == []
    assert problems({**LAST, "response": ""}, is_chat=False) == []


@pytest.mark.parametrize(
    "broken",
    [
        [],
        [line()],
        [LAST, LAST],
        [{"error": "gone"}, LAST],
        [LAST | {"done_reason": None}],
        *([LAST | {key: 1.5}] for key in LAST_KEYS),
        *([{key: value for key, value in LAST.items() if key != name}] for name in ("model", "created_at", "message")),
        [line(message={"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}), LAST],
        [line(message={"tool_calls": [{"function": {"arguments": {}}}]}), LAST],
    ],
)
def test_broken_streams(broken: list[Any]) -> None:
    assert problems(*broken)


def test_framing() -> None:
    assert check_ollama_stream(json.dumps(LAST), is_chat=True)
    assert check_ollama_stream(f"\n{json.dumps(LAST)}\n", is_chat=True)
    assert check_ollama_stream(f"data: {json.dumps(LAST)}\n", is_chat=True)
