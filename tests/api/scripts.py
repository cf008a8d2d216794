"""Answers that the scripted text pool gives, shared by the tests of all APIs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from ipc.messages import Delta, Finished, Started, TextEvent
from sparkinfer.request import FinishReason, Request, ToolCallDelta

Part = tuple[str, str] | tuple[str, str, str, str]  # ("reasoning" | "content", text) or ("call", id, name, arguments)

WEATHER = ("call", "call_abc123", "get_weather", '{"city": "Paris"}')
CLOCK = ("call", "call_def456", "now", "{}")


def says(
    *parts: Part, reason: FinishReason | None = None, stop_string: str | None = None, piece: int = 3, cached: int = 2,
) -> Callable[[Request], Iterable[list[TextEvent]]]:
    """A script that streams `parts`, `piece` characters at a time. reason: TOOL_CALLS after calls, else STOP."""
    has_calls = any(part[0] == "call" for part in parts)
    ends = reason or (FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP)

    def script(request: Request) -> Iterator[list[TextEvent]]:
        number = itertools.count()
        yield [Started(request.request_id, 7)]
        num_tokens = 0
        for part in parts:
            for delta in _deltas(request, part, piece, number):
                num_tokens += 1
                yield [delta]
        yield [Finished(request.request_id, 0, ends, num_tokens, 1, cached, 10.0, 30.0, stop_string)]

    return script


def _deltas(request: Request, part: Part, piece: int, number: Iterator[int]) -> Iterator[Delta]:
    if part[0] == "call":
        index = next(number)
        _, call_id, name, arguments = part
        yield Delta(request.request_id, 0, "", "", 1, None, [ToolCallDelta(index, call_id, name, "")])
        for text in _cut(arguments, piece):
            yield Delta(request.request_id, 0, "", "", 1, None, [ToolCallDelta(index, "", "", text)])
        return
    for text in _cut(part[1], piece):
        is_reasoning = part[0] == "reasoning"
        yield Delta(request.request_id, 0, "" if is_reasoning else text, text if is_reasoning else "", 1)


def _cut(text: str, piece: int) -> list[str]:
    return [text[at:at + piece] for at in range(0, len(text), piece)]
