"""An answer as a sequence of blocks of one kind each: reasoning, content, calls, in the order of their arrival.

For the APIs whose answers are lists of typed items. Knows no API's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sparkinfer.api.logprobs import TokenLogprob
from sparkinfer.request import ToolCallDelta


class ReplyDelta(Protocol):
    """What a step added to one choice. With logprobs the text is of one kind, and theirs."""

    @property
    def content(self) -> str: ...
    @property
    def reasoning(self) -> str: ...
    @property
    def logprobs(self) -> Sequence[TokenLogprob] | None: ...
    @property
    def tool_calls(self) -> Sequence[ToolCallDelta]: ...


BlockKind = Literal["reasoning", "content", "call"]


@dataclass(slots=True, eq=False)
class Block:
    """A run of text of one kind, or one call: then `pieces` are its arguments. logprobs: of content, if asked for."""

    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class BlockSequence:
    """Cuts the deltas of one choice into blocks.

    Content of nothing but whitespace opens no block: it waits for the text it belongs to, and is dropped where
    reasoning, a call or the end comes first. An empty block would be refused when a client sends it back.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._whitespace = ""
        self._logprobs: list[TokenLogprob] = []  # of content that has no block yet

    def add(self, delta: ReplyDelta) -> Iterator[tuple[Block, str]]:
        """What the delta adds, piece by piece; a block is new when it was not yet the last of `blocks`."""
        if delta.reasoning:
            yield self._extend("reasoning", delta.reasoning)
        if delta.logprobs and not delta.reasoning:
            is_open = bool(self.blocks) and self.blocks[-1].kind == "content"
            (self.blocks[-1].logprobs if is_open else self._logprobs).extend(delta.logprobs)
        if delta.content:
            text = self._whitespace + delta.content
            if self.blocks and self.blocks[-1].kind == "content":
                yield self._extend("content", text)
            elif text.isspace():
                self._whitespace = text
            else:
                yield self._extend("content", text)
        for call in delta.tool_calls:
            if call.name:
                self._whitespace = ""
                self.blocks.append(Block("call", call.id, call.name))
            block = self.blocks[-1]
            block.pieces.append(call.arguments)
            yield block, call.arguments

    def take(self, delta: ReplyDelta) -> None:
        """`add` without looking."""
        for _ in self.add(delta):
            pass

    def drop_last(self) -> None:
        """The newest block is not to be shown."""
        self.blocks.pop()

    def _extend(self, kind: BlockKind, text: str) -> tuple[Block, str]:
        self._whitespace = ""
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(Block(kind))
            if kind == "content":
                self.blocks[-1].logprobs, self._logprobs = self._logprobs, []
        self.blocks[-1].pieces.append(text)
        return self.blocks[-1], text
