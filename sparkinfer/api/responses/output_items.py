"""The output items of a response, whole and as the events by which they grow. Knows no stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sparkinfer.api.blocks import Block
from sparkinfer.api.logprobs import TokenLogprob, chat_logprobs
from sparkinfer.api.responses.conversation import encode_reasoning
from sparkinfer.api.responses.freeform import FreeformInput, freeform_text
from sparkinfer.api.responses.request import ResponsesRequest
from sparkinfer.api.responses.tools import ClientTool

Event = tuple[str, dict[str, Any]]  # type and fields, but for its number

_PREFIXES = {"reasoning": "rs", "content": "msg", "call": "fc"}
_PARTS = {"reasoning": "reasoning_text", "content": "output_text"}


class OutputItems:
    """Renders the blocks of one answer, one after the other."""

    def __init__(self, reply_id: str, asked: ResponsesRequest) -> None:
        self._num_logprobs = 0  # that went out with deltas of the item that is open
        self._input = FreeformInput()  # of the call that is open
        self._num_characters = 0  # of it that went out
        self._reply_id = reply_id
        self._tools = asked.tools
        self._wants_encrypted = asked.wants_encrypted_reasoning

    def begin(self, block: Block, position: int) -> Iterator[Event]:
        """The events that open an item."""
        self._num_logprobs = 0
        self._input, self._num_characters = FreeformInput(), 0
        item = self.whole(Block(block.kind, block.call_id, block.name), position, "in_progress")
        if block.kind != "call":
            item["content"] = []
        yield "response.output_item.added", {"output_index": position, "item": item}
        if block.kind != "call":
            yield "response.content_part.added", self._at(block, position) | {"part": self._part(block.kind, "", ())}

    def delta(self, block: Block, position: int, text: str) -> Iterator[Event]:
        """The event for more text."""
        if block.kind == "call":
            yield from self._call_delta(block, position, text)
            return
        fields = self._at(block, position) | {"delta": text}
        if block.kind == "content":
            fields["logprobs"] = _logprobs(block.logprobs[self._num_logprobs:])
            self._num_logprobs = len(block.logprobs)
        yield f"response.{_PARTS[block.kind]}.delta", fields

    def close(self, block: Block, position: int, item: dict[str, Any]) -> Iterator[Event]:
        """The events that close the item; item: the whole of it."""
        where = self._at(block, position)
        if block.kind != "call":
            (part,) = item["content"]
            done = where | {"text": block.text}
            if block.kind == "content":
                done["logprobs"] = _logprobs(block.logprobs)
            yield f"response.{_PARTS[block.kind]}.done", done
            yield "response.content_part.done", where | {"part": part}
        elif self._tool(block).is_custom:
            rest = item["input"][self._num_characters:]
            if rest:
                yield "response.custom_tool_call_input.delta", where | {"delta": rest}
            yield "response.custom_tool_call_input.done", where | {"input": item["input"]}
        else:
            done = where | {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", done
        yield "response.output_item.done", {"output_index": position, "item": item}

    def _call_delta(self, block: Block, position: int, text: str) -> Iterator[Event]:
        where = self._at(block, position)
        if not self._tool(block).is_custom:
            yield "response.function_call_arguments.delta", where | {"delta": text}
            return
        more = self._input.push(text)
        if more:
            self._num_characters += len(more)
            yield "response.custom_tool_call_input.delta", where | {"delta": more}

    def whole(self, block: Block, position: int, status: str) -> dict[str, Any]:
        """The item with all that its block holds."""
        if block.kind == "call":
            return self._call(block, position, status)
        part = self._part(block.kind, block.text, block.logprobs)
        item: dict[str, Any] = {"id": self._id(block, position), "status": status, "content": [part]}
        if block.kind == "content":
            return item | {"type": "message", "role": "assistant"}
        hidden = encode_reasoning(block.text) if self._wants_encrypted and block.pieces else None
        return item | {"type": "reasoning", "summary": [], "encrypted_content": hidden}

    def _call(self, block: Block, position: int, status: str) -> dict[str, Any]:
        tool = self._tool(block)
        item: dict[str, Any] = {"id": self._id(block, position), "call_id": block.call_id, "name": tool.name}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        if tool.is_custom:
            return item | {"type": "custom_tool_call", "status": status, "input": freeform_text(block.text)}
        return item | {"type": "function_call", "status": status, "arguments": block.text}

    def _part(self, kind: str, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _PARTS[kind], "text": text}
        return part | {"annotations": [], "logprobs": _logprobs(logprobs)} if kind == "content" else part

    def _tool(self, block: Block) -> ClientTool:
        return self._tools.get(block.name) or ClientTool(block.name)

    def _id(self, block: Block, position: int) -> str:
        prefix = "ctc" if block.kind == "call" and self._tool(block).is_custom else _PREFIXES[block.kind]
        return f"{prefix}_{self._reply_id}{position:04x}"

    def _at(self, block: Block, position: int) -> dict[str, Any]:
        where: dict[str, Any] = {"item_id": self._id(block, position), "output_index": position}
        return where if block.kind == "call" else where | {"content_index": 0}


def _logprobs(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return list(chat_logprobs(entries)["content"]) if entries else []
