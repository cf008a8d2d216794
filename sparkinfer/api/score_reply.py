"""The answer of POST /v1/score: each list of a score has an item for each scored token; a batch is a list of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.logprobs import finite_or_none, token_entry
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.openai_stream import OpenAIStream
from sparkinfer.api.reply import Choice, ReplyDelta
from sparkinfer.api.usage import Usage
from sparkinfer.request import FinishReason


class ScoreReply(OpenAIStream):
    """Never streamed: only `document` has something to say."""

    def __init__(self, reply_id: str, created: int, info: ModelInfo, *, has_top: bool, is_batch: bool) -> None:
        """has_top: alternatives were asked for; is_batch: the answer is a list, however long."""
        super().__init__(f"score-{reply_id}", "score", created, info)
        self._has_top = has_top
        self._is_batch = is_batch

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        return b""

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        return b""

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        return b""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        if not self._is_batch:
            return sse.encode_json({**self._head, **self._score(choices[0]), "usage": usage.to_json()})
        data = [{"object": "score", "index": choice.index, **self._score(choice)} for choice in choices]
        return sse.encode_json({**self._head, "object": "list", "data": data, "usage": usage.to_json()})

    def _score(self, choice: Choice) -> dict[str, Any]:
        entries = choice.logprobs or []
        logprobs = [finite_or_none(entry.logprob) for entry in entries]
        score: dict[str, Any] = {
            "tokens": [entry.token.decode("utf-8", "replace") for entry in entries],
            "token_ids": [entry.token_id for entry in entries],
            "bytes": [list(entry.token) for entry in entries],
            "logprobs": logprobs,
            "sum_logprob": math.fsum(logprob for logprob in logprobs if logprob is not None),
        }
        if self._has_top:
            score["top_logprobs"] = [[token_entry(*alternative) for alternative in entry.top] for entry in entries]
        return score
