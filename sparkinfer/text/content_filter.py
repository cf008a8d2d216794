"""What of an answer's content reaches the client: calls are taken out, stop strings end it, a form is kept to.

Sees the text behind the reasoning alone. Knows text and calls; never tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sparkinfer.errors import RequestError
from sparkinfer.request import ToolCallDelta
from sparkinfer.text.stop_strings import StopStringFilter
from sparkinfer.text.tool_protocols.call_parser import CallParser
from sparkinfer.text.tool_protocols.call_writer import ToolOffer, ToolOutputError
from sparkinfer.text.tool_protocols.protocol import ToolProtocol, call_parser


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """How content is read. Nothing of it is assumed to be kept to until `enforced` says so."""

    stop: tuple[str, ...] = ()         # stop strings
    offer: ToolOffer | None = None     # functions that may be called
    protocol: ToolProtocol = ToolProtocol.HERMES
    has_format: bool = False           # content is of a form that was asked for: a call stands in its place or nowhere
    check: Callable[[str], str | None] | None = None  # what is wrong with a complete answer of that form

    def enforced(self, approximations: Collection[str]) -> ContentOptions:
        """With a grammar behind it that keeps to everything but `approximations`: "path: keyword", or "everything".

        What the grammar is sure of can be shown as it comes; the rest waits for its end and is checked.
        """
        offer = self.offer
        if offer is not None:
            tools = tuple(
                dataclasses.replace(tool, is_live=not any(_concerns(a, f"tools[{i}].") for a in approximations))
                for i, tool in enumerate(offer.tools)
            )
            offer = dataclasses.replace(offer, tools=tools)
        is_exact = not any(not a.startswith("tools[") for a in approximations)
        return dataclasses.replace(self, offer=offer, check=None if is_exact else self.check)


def _concerns(approximation: str, path: str) -> bool:
    return approximation.startswith(path) or ":" not in approximation


class ContentFilter:
    """One choice's content. After `stop_string` or `failure` is set it takes nothing more."""

    def __init__(self, options: ContentOptions) -> None:
        self.stop_string: str | None = None
        self.failure: RequestError | None = None
        self.has_ended = False           # one of these two is set
        self._offer = options.offer
        self._calls = _parser(options)
        self._check = options.check
        self._waiting: list[str] = []    # content that must be checked whole
        self._num_waiting = 0
        self._stops = StopStringFilter(options.stop) if options.stop else None
        self._deltas: list[ToolCallDelta] = []
        self.is_idle = self._calls is None and self._stops is None and self._check is None  # content goes as it comes

    @property
    def num_held(self) -> int:
        """Characters that are held back."""
        calls = self._calls.num_held if self._calls is not None else 0
        return calls + self._num_waiting + (self._stops.num_held if self._stops is not None else 0)

    @property
    def num_calls(self) -> int:
        """Complete calls so far."""
        return self._calls.num_calls if self._calls is not None else 0

    def push(self, text: str) -> str:
        """Content that became certain; what belongs to calls behind it is for `take_calls`."""
        if self._calls is None:
            return self._pass(text)
        try:
            text, deltas = self._calls.push(text)
        except ToolOutputError as error:
            self._fail(str(error), "invalid_tool_output")
            return ""
        content = self._pass(text) if text else ""
        if (deltas or self._calls.is_in_call) and not self.has_ended:
            content += self._release()  # a stop string cannot go on in a call
            self._deltas += deltas
        return content

    def take_calls(self) -> list[ToolCallDelta]:
        """What may be shown of calls since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def flush(self, *, is_complete: bool) -> str:
        """Content that was held back, at the end. is_complete: the model ended the answer, and no limit did."""
        if self.has_ended:
            return ""
        content = self._pass(self._calls.flush(is_complete=is_complete)) if self._calls is not None else ""
        if self.has_ended:
            return content
        content += self._release()
        if self._check is not None:
            content = "".join(self._waiting) + content
        if is_complete:
            self._check_whole(content)
        return "" if self.has_ended else content

    def _pass(self, text: str) -> str:
        """Through the stop strings; content that must be checked stays."""
        if self._stops is not None and text:
            text = self._stops.push(text)
            self.stop_string = self._stops.matched
            self.has_ended = self.stop_string is not None
        if self._check is None:
            return text
        self._waiting.append(text)
        self._num_waiting += len(text)
        if self.stop_string is None:
            return ""
        return "".join(self._waiting)

    def _release(self) -> str:
        return self._stops.flush() if self._stops is not None and self.stop_string is None else ""

    def _check_whole(self, content: str) -> None:
        """The answer is complete: is it what was asked for?"""
        calls = self._calls
        if calls is not None and calls.is_in_call:
            self._fail("the model did not finish a call", "invalid_tool_output")
        elif self.num_calls == 0 and self._offer is not None and self._offer.policy.choice == "required":
            self._fail("the model called no function although it had to", "invalid_tool_output")
        elif self.num_calls == 0 and self._check is not None and (problem := self._check(content)) is not None:
            self._fail(f"the answer is not of the form that was asked for: {problem}", "invalid_json_output")

    def _fail(self, problem: str, code: str) -> None:
        self.has_ended = True
        self.failure = RequestError(502, f"The model's output cannot be used: {problem}", code=code)


def _parser(options: ContentOptions) -> CallParser | None:
    if options.offer is None:
        return None
    return call_parser(options.protocol, options.offer, calls_come_first=options.has_format)
