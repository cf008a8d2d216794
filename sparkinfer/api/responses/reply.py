"""The answer of POST /v1/responses: a numbered stream of events, or one response.

An answer that ran out of tokens ends with response.completed too, with status "incomplete" and the reason: Codex and
OpenAI's own helper wait for that event, and the former takes response.incomplete for a broken stream. Knows no process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.blocks import Block, BlockSequence, ReplyDelta
from sparkinfer.api.errors import error_object
from sparkinfer.api.reply import Choice
from sparkinfer.api.responses.output_items import OutputItems
from sparkinfer.api.responses.request import ResponsesRequest
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError
from sparkinfer.request import FinishReason

Save = Callable[[dict[str, Any]], Awaitable[bool]]  # keeps the finished response; whether it could


class ResponsesReply:
    """One answer; requests of this API have one choice."""

    stream_headers = sse.HEADERS

    def __init__(self, reply_id: str, created: int, asked: ResponsesRequest, save: Save) -> None:
        """reply_id: hexadecimal, unique; created: Unix time; save: called once, with what is to be stored."""
        self._head: dict[str, Any] = {"id": f"resp_{reply_id}", "object": "response", "created_at": created}
        self._echoed = asked.echoed | {"store": asked.store}
        self._save = save
        self._items = OutputItems(reply_id, asked)
        self._blocks = BlockSequence()
        self._open: Block | None = None
        self._position = -1
        self._output: list[dict[str, Any]] = []
        self._is_cut = False
        self._is_created = False
        self._num_events = 0

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        return self._create() + self._status("response.in_progress")

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        events = []
        for block, text in self._blocks.add(delta):
            if block is not self._open:
                events += [self._close("completed"), self._begin(block)]
            if text:
                events += [self._event(*event) for event in self._items.delta(block, self._position, text)]
        return b"".join(events)

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        self._is_cut = finish_reason is FinishReason.LENGTH
        events = b"" if self._blocks.blocks else self._begin(Block("content"))  # there is always an item
        return events + self._close("incomplete" if self._is_cut else "completed")

    def keep_alive(self) -> bytes:
        """An event: the patience of Codex counts events, not bytes."""
        return self._create() + self._status("response.in_progress")

    def end(self, usage: Usage | None) -> bytes:
        response = self._response(self._final_status, self._output, usage)
        return self._event("response.completed", {"response": response})

    def failure(self, error: RequestError) -> bytes:
        fields = error_object(error)["error"]
        told = {"code": fields["code"] or fields["type"], "message": fields["message"]}
        output = self._output
        if self._open is not None:
            output = [*output, self._items.whole(self._open, self._position, "incomplete")]
        response = self._response("failed", output, None) | {"error": told | {"code": _failure_code(error)}}
        return (
            self._create()
            + self._event("error", told | {"param": fields["param"]})
            + self._event("response.failed", {"response": response})
        )

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return sse.encode_json(self._whole(choices[0], usage))

    async def keep(self, choices: Sequence[Choice] | None, usage: Usage) -> None:
        if not self._echoed["store"]:
            return
        if choices is None:
            response = self._response(self._final_status, self._output, usage)
        else:
            response = self._whole(choices[0], usage)
        self._echoed["store"] = await self._save(response)

    def _whole(self, choice: Choice, usage: Usage) -> dict[str, Any]:
        self._is_cut = choice.finish_reason is FinishReason.LENGTH
        blocks = choice.blocks.blocks or [Block("content")]
        output = [
            self._items.whole(block, position, self._final_status if block is blocks[-1] else "completed")
            for position, block in enumerate(blocks)
        ]
        return self._response(self._final_status, output, usage)

    @property
    def _final_status(self) -> str:
        return "incomplete" if self._is_cut else "completed"

    def _begin(self, block: Block) -> bytes:
        self._open = block
        self._position += 1
        return b"".join(self._event(*event) for event in self._items.begin(block, self._position))

    def _close(self, status: str) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        self._output.append(self._items.whole(block, self._position, status))
        events = self._items.close(block, self._position, self._output[-1])
        return b"".join(self._event(*event) for event in events)

    def _create(self) -> bytes:
        """The event that opens the stream, once."""
        if self._is_created:
            return b""
        self._is_created = True
        return self._status("response.created")

    def _status(self, kind: str) -> bytes:
        return self._event(kind, {"response": self._response("in_progress", [], None)})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        number = self._num_events
        self._num_events += 1
        return sse.event({"type": kind, "sequence_number": number, **fields}, kind)

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        is_cut = status == "incomplete"
        return {
            **self._head,
            **self._echoed,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": None if usage is None else _usage(usage),
        }


def _failure_code(error: RequestError) -> str:
    """One of OpenAI's few codes of a failed response, or one by which Codex knows what to do."""
    if error.code == "context_length_exceeded":
        return error.code
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
