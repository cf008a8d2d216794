"""Replies with calls, cut into pieces and read, for the tests of this folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkinfer.grammar.checker import first_violation
from sparkinfer.request import ToolCallDelta, ToolPolicy
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOffer
from sparkinfer.text.tool_protocols.protocol import ToolProtocol, call_parser

EVERY_TYPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 1, "maximum": 10},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "box": {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": False},
        "nothing": {"type": "null"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 9}]},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "letter": {"type": "string", "minLength": 1, "maxLength": 1},
        "linked": {"$ref": "#/$defs/size"},
    },
    "additionalProperties": False,
    "$defs": {"size": {"enum": ["S", "M", 3]}},
}
OPEN: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
NOW: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass
class ReadReply:
    """What became of a reply."""

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments' text
    ids: list[str] = field(default_factory=list)
    num_calls: int = 0
    deltas: list[ToolCallDelta] = field(default_factory=list)

    @property
    def values(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


FREE = ToolPolicy()


def offer(policy: ToolPolicy = FREE, *, is_live: bool = True, extra: Sequence[OfferedTool] = ()) -> ToolOffer:
    """`every` with arguments of all types, `open` with any, `now` with none."""
    tools = (
        OfferedTool("every", EVERY_TYPE, is_live), OfferedTool("open", OPEN, is_live), OfferedTool("now", NOW, is_live),
    )  # fmt: skip
    numbers = itertools.count()
    return ToolOffer((*tools, *extra), policy, first_violation, lambda: f"call_{next(numbers)}")


def cut(text: str, lengths: Sequence[int]) -> list[str]:
    """`text` in pieces of these lengths, over and over."""
    pieces, at = [], 0
    for length in itertools.cycle(lengths):
        if at >= len(text):
            return pieces
        pieces.append(text[at:at + length])
        at += length
    return pieces


def read(
    protocol: ToolProtocol, text: str, lengths: Sequence[int] = (1000,), *, offered: ToolOffer | None = None,
    calls_come_first: bool = False, is_complete: bool = True,
) -> ReadReply:
    """Read `text`, cut as `lengths` says; ToolOutputError as the parser raises it."""
    parser = call_parser(protocol, offered or offer(), calls_come_first=calls_come_first)
    reply = ReadReply()
    for piece in cut(text, lengths):
        content, deltas = parser.push(piece)
        assert parser.num_held <= len(text)
        reply.content += content
        reply.deltas += deltas
    reply.content += parser.flush(is_complete=is_complete)
    for delta in reply.deltas:
        if delta.name:
            assert delta.index == len(reply.calls)
            assert delta.id
            assert not delta.arguments
            reply.calls.append((delta.name, ""))
            reply.ids.append(delta.id)
        else:
            assert delta.index == len(reply.calls) - 1
            assert delta.arguments
            assert not delta.id
            name, arguments = reply.calls[-1]
            reply.calls[-1] = (name, arguments + delta.arguments)
    reply.num_calls = parser.num_calls
    return reply
