"""The rules that a stream of Ollama's API keeps. Knows no server: it reads lines that came from somewhere."""

from __future__ import annotations

import json
from typing import Any

_DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_COUNTS = ("prompt_eval_count", "eval_count")


def check_ollama_stream(text: str, *, is_chat: bool) -> list[str]:
    """What is wrong with a whole body, in words; nothing when it is empty."""
    problems: list[str] = []
    lines = []
    for line in text.split("\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except ValueError:
            problems.append(f"no JSON on a line: {line[:80]!r}")
    if not text.endswith("\n") or not lines:
        problems.append("the stream does not end with a whole line")
    for i, line in enumerate(lines):
        is_last = i == len(lines) - 1
        if "error" in line:
            if not is_last:
                problems.append("lines after an error")
        else:
            problems += _check_line(line, is_last, "message" if is_chat else "response")
    return problems


def _check_line(line: dict[str, Any], is_last: bool, key: str) -> list[str]:
    problems = [f"a line without {name}" for name in ("model", "created_at", key, "done") if name not in line]
    if line.get("done") is not is_last:
        problems.append("done is false on the last line" if is_last else "done before the last line")
    if is_last:
        if not line.get("done_reason"):
            problems.append("the last line has no done_reason")
        numbers = (*_DURATIONS, *_COUNTS)
        problems += [f"{name} is no whole number" for name in numbers if type(line.get(name)) is not int]
    message = line.get("message")
    for call in message.get("tool_calls", []) if isinstance(message, dict) else []:
        function = call.get("function", {})
        if not function.get("name") or not isinstance(function.get("arguments"), dict):
            problems.append("a call without a name or without an object of arguments")
    return problems
