"""Reads tool calls that are written as markup, a tag an argument, as their text streams. Knows tags; never tokens.

    reply     = content { call }
    call      = open  { head NAME tail  { argument }  foot }  close        Qwen: one function a call
    argument  = key NAME tail  value  end

Whitespace between tags means nothing. The value of an argument is text without quotes where its schema admits strings
alone, JSON where it admits none, and else JSON if it is JSON that fits. The text of a value ends at the first end tag,
JSON ends by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sparkinfer.grammar.pattern import PatternError
from sparkinfer.grammar.safe_match import has_match
from sparkinfer.text.tool_protocols.call_parser import CallParser
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOffer, ToolOutputError
from sparkinfer.text.tool_protocols.value_reader import JsonReader, MixedReader, TextReader, ValueReader
from sparkinfer.text.tool_protocols.value_types import ValueKind, argument_schemas, value_kind

MAX_NAME_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one protocol. has_framing: a newline at each end of a value belongs to its tags."""

    open: str
    head: str
    key: str
    tail: str
    end: str
    foot: str
    close: str
    has_framing: bool
    is_repeated: bool                 # several functions may stand between open and close

    @property
    def value_lead(self) -> str:
        """What stands on both sides of a value."""
        return "\n" if self.has_framing else ""


QWEN_TAGS = Tags(
    "<tool_call>", "<function=", "<parameter=", ">", "</parameter>", "</function>", "</tool_call>",
    has_framing=True, is_repeated=False,
)  # fmt: skip
MUSE_TAGS = Tags(
    "<atem:function_calls>", '<atem:invoke name="', '<atem:parameter name="', '">', "</atem:parameter>",
    "</atem:invoke>", "</atem:function_calls>", has_framing=False, is_repeated=True,
)  # fmt: skip


class _State(Enum):
    OPENED = auto()      # a function must follow
    ARGUMENTS = auto()   # an argument or the end of the function
    VALUE = auto()
    CLOSING = auto()     # the end of the call, perhaps another function


class MarkupParser(CallParser):
    """One choice's reply behind its reasoning."""

    def __init__(self, tags: Tags, offer: ToolOffer, *, calls_come_first: bool = False) -> None:
        super().__init__(tags.open, offer, calls_come_first=calls_come_first)
        self._tags = tags
        self._offer = offer
        self._state = _State.OPENED
        self._tool: OfferedTool | None = None
        self._keys: set[str] = set()
        self._reader: ValueReader | None = None

    @property
    def num_held(self) -> int:
        return super().num_held + (len(self._reader.rest) if self._reader is not None else 0)

    def _open(self) -> None:
        self._state = _State.OPENED

    def _advance_call(self) -> bool:
        match self._state:
            case _State.OPENED:
                return self._named_tag((self._tags.head,), self._begin_function)
            case _State.ARGUMENTS:
                return self._named_tag((self._tags.key, self._tags.foot), self._begin_argument)
            case _State.VALUE:
                return self._read_value()
            case _State.CLOSING:
                return self._read_close()

    def _named_tag(self, choices: tuple[str, ...], begin: Callable[[str], None]) -> bool:
        """One of `choices`: the first has a name, and is read up to its tail; any other ends the function."""
        tag = self._next_tag(choices, keep=True)
        if tag is None:
            return False
        if tag != choices[0]:
            self._held = self._held[len(tag):]
            self._end_function()
            return True
        name, tail, rest = self._held[len(tag):].partition(self._tags.tail)
        if len(name) > MAX_NAME_CHARACTERS:
            raise ToolOutputError("a tag of the model's call does not end")
        if tail:
            self._held = rest
            begin(name)
        return bool(tail)

    def _begin_function(self, name: str) -> None:
        self._tool = self._calls.begin(name)
        self._calls.add("{")
        self._keys = set()
        self._state = _State.ARGUMENTS

    def _end_function(self) -> None:
        self._calls.add("}")
        self._calls.end()
        self._state = _State.CLOSING

    def _begin_argument(self, name: str) -> None:
        assert self._tool is not None, "an argument belongs to a function"
        if name in self._keys:
            raise ToolOutputError(f"the model gave the argument {name!r} twice")
        parameters = self._tool.parameters
        schema = _argument_schema(parameters, name)
        if schema is False:
            raise ToolOutputError(f"the model gave an argument {name!r}, which {self._tool.name!r} does not take")
        self._calls.add(("," if self._keys else "") + json.dumps(name, ensure_ascii=False) + ":")
        self._keys.add(name)
        self._reader = self._make_reader(schema, parameters)
        self._state = _State.VALUE

    def _make_reader(self, schema: Any, root: Any) -> ValueReader:
        tags, kind = self._tags, value_kind(schema, root)
        if kind is ValueKind.TEXT:
            return TextReader(tags.end, has_framing=tags.has_framing)
        if kind is ValueKind.JSON:
            return JsonReader(tags.end)
        offer = self._offer
        return MixedReader(tags.end, lambda text: offer.takes_json(text, schema, root), has_framing=tags.has_framing)

    def _read_value(self) -> bool:
        assert self._reader is not None, "a value has its reader"
        text, self._held = self._held, ""
        self._calls.add(self._reader.push(text))
        if not self._reader.has_ended:
            return False
        self._held, self._reader = self._reader.rest, None
        self._state = _State.ARGUMENTS
        return True

    def _read_close(self) -> bool:
        tags = self._tags
        tag = self._next_tag((tags.close, tags.head) if tags.is_repeated else (tags.close,), keep=True)
        if tag is None:
            return False
        if tag == tags.head:
            self._state = _State.OPENED
            return True
        self._held = self._held[len(tag):]
        return self._close()


def _argument_schema(parameters: Mapping[str, Any], name: str) -> Any:
    """The schema of the argument `name`; False if the function takes none of that name."""
    found = argument_schemas(parameters).get(name)
    if found is not None:
        return found
    patterns = [schema for pattern, schema in parameters.get("patternProperties", {}).items() if _has(name, pattern)]
    return {"allOf": patterns} if patterns else parameters.get("additionalProperties", True)


def _has(name: str, pattern: str) -> bool:
    try:
        return has_match(pattern, name)
    except PatternError:
        return False
