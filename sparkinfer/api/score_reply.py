"""The answer of POST /v1/score: one object, each of its lists with an item for each scored token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkinfer.api import sse
from sparkinfer.api.logprobs import finite_or_none, token_entry
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.openai_stream import OpenAIStream
from sparkinfer.api.reply import Choice, ReplyDelta
from sparkinfer.api.usage import Usage
from sparkinfer.request import FinishReason


class ScoreReply(OpenAIStream):
    """Never streamed: only `document` has something to say."""

    def __init__(self, reply_id: str, created: int, info: ModelInfo, *, has_top: bool) -> None:
        """has_top: alternatives were asked for."""
        super().__init__(f"score-{reply_id}", "score", created, info)
        self._has_top = has_top

    def start(self, index: int, echo: str, num_prompt_tokens: int) -> bytes:
        return b""

    def delta(self, index: int, delta: ReplyDelta) -> bytes:
        return b""

    def finish(self, index: int, finish_reason: FinishReason, stop_string: str | None = None) -> bytes:
        return b""

    def document(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        entries = choices[0].logprobs or []
        logprobs = [finite_or_none(entry.logprob) for entry in entries]
        document = self._head | {
            "tokens": [entry.token.decode("utf-8", "replace") for entry in entries],
            "token_ids": [entry.token_id for entry in entries],
            "bytes": [list(entry.token) for entry in entries],
            "logprobs": logprobs,
            "sum_logprob": math.fsum(logprob for logprob in logprobs if logprob is not None),
        }
        if self._has_top:
            document["top_logprobs"] = [[token_entry(*alternative) for alternative in entry.top] for entry in entries]
        return sse.encode_json(document | {"usage": usage.to_json()})
