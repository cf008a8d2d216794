"""What becomes of a reply's tool calls: which are taken, under which ids, and when their arguments may be shown.

A call's arguments go out as they are produced where a grammar has made sure that they follow their schema. Otherwise
they wait for their end and are checked first. Knows functions and JSON; never a protocol's markup.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkinfer.request import ToolCallDelta, ToolPolicy
from sparkinfer.text.tool_protocols.value_types import json_types, type_of

Check = Callable[[Any, Any, Any], str | None]
"""(schema, value, what the schema's references point into) -> what is wrong with the value, if anything is."""


class ToolOutputError(Exception):
    """The model's calls cannot be passed on; the message says why."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A function that may be called."""

    name: str
    parameters: Mapping[str, Any]     # JSON Schema of its arguments, an object
    is_live: bool = False             # what the model writes follows the schema, so it may be shown at once


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The functions of one request and what was said about calling them."""

    tools: tuple[OfferedTool, ...]
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    check: Check | None = None        # for arguments that are not live
    new_id: Callable[[], str] = field(default=lambda: f"call_{secrets.token_hex(12)}")

    def find(self, name: str) -> OfferedTool:
        """The function of that name, or of the only one that differs from it in case alone. Raises ToolOutputError."""
        for tool in self.tools:
            if tool.name == name:
                return tool
        alike = [tool for tool in self.tools if tool.name.lower() == name.lower()]
        if len(alike) != 1:
            raise ToolOutputError(f"the model called {name[:64]!r}, which is not offered")
        return alike[0]

    def takes_json(self, text: str, schema: Any, root: Any) -> bool:
        """Whether `text` is strict JSON of a value that `schema`, a part of `root`, takes."""
        try:
            value = strict_json(text)
        except ValueError:
            return False
        if type_of(value) not in json_types(schema, root):
            return False
        return self.check is None or self.check(schema, value, root) is None


class CallWriter:
    """The calls of one choice, in order: `begin`, any number of `add`, `end`; `take` for what may be shown."""

    def __init__(self, offer: ToolOffer) -> None:
        self.num_calls = 0                # complete ones that were passed on
        self._offer = offer
        self._tool: OfferedTool | None = None  # of the call at hand, if it is taken
        self._index = 0
        self._arguments: list[str] = []   # of a call that is not live
        self._deltas: list[ToolCallDelta] = []

    def begin(self, name: str) -> OfferedTool:
        """A call to `name` begins; the function as it is offered. Raises ToolOutputError if it is not."""
        tool = self._offer.find(name)
        policy = self._offer.policy
        if policy.choice == "none":
            raise ToolOutputError("the model called a function although none may be called")
        is_wanted = (not policy.allowed or tool.name in policy.allowed) and (policy.parallel or self.num_calls == 0)
        self._tool = tool if is_wanted else None
        if self._tool is not None:
            self._index = self.num_calls
            self._arguments = []
            if tool.is_live:
                self._deltas.append(ToolCallDelta(self._index, self._offer.new_id(), tool.name))
        return tool

    def add(self, text: str) -> None:
        """The next characters of the arguments' JSON text."""
        if self._tool is None or not text:
            return
        if not self._tool.is_live:
            self._arguments.append(text)
        elif self._deltas and self._deltas[-1].index == self._index and not self._deltas[-1].name:
            last = self._deltas.pop()
            self._deltas.append(ToolCallDelta(self._index, arguments=last.arguments + text))
        else:
            self._deltas.append(ToolCallDelta(self._index, arguments=text))

    def end(self) -> None:
        """The arguments are complete. Raises ToolOutputError if they had to be checked and are wrong."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        if not tool.is_live:
            arguments = "".join(self._arguments)
            self._check(tool, arguments)
            self._deltas += [
                ToolCallDelta(self._index, self._offer.new_id(), tool.name),
                ToolCallDelta(self._index, arguments=arguments),
            ]
        self.num_calls += 1

    def take(self) -> list[ToolCallDelta]:
        """What may be shown since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _check(self, tool: OfferedTool, arguments: str) -> None:
        try:
            value = strict_json(arguments)
        except ValueError as error:
            raise ToolOutputError(f"the model's arguments to {tool.name!r} are not JSON: {error}") from error
        problem = None if self._offer.check is None else self._offer.check(tool.parameters, value, tool.parameters)
        if problem is not None:
            raise ToolOutputError(f"the model's arguments to {tool.name!r} are wrong: {problem}")


def strict_json(text: str) -> Any:
    """The value of JSON text; of a key that occurs twice the last. Raises ValueError for any other text and 1e999."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:32]} is out of range")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
