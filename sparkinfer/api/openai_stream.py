"""How every stream of OpenAI's completion APIs is framed and ends. Knows no chunk but the last ones."""

from __future__ import annotations

from typing import Any

from sparkinfer.api import sse
from sparkinfer.api.errors import error_object
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.usage import Usage
from sparkinfer.errors import RequestError


class OpenAIStream:
    """What ChatReply and CompletionReply have in common."""

    stream_headers = sse.HEADERS

    def __init__(self, reply_id: str, kind: str, created: int, info: ModelInfo) -> None:
        """kind: the chunks' `object`; created: Unix time."""
        self._head: dict[str, Any] = {
            "id": reply_id,
            "object": kind,
            "created": created,
            "model": info.model,
            "system_fingerprint": info.fingerprint,
        }

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def end(self, usage: Usage | None) -> bytes:
        if usage is None:
            return sse.DONE
        return sse.event(self.last_chunk(usage)) + sse.DONE

    def last_chunk(self, usage: Usage) -> dict[str, Any]:
        """The one with the usage."""
        return self._head | {"choices": [], "usage": usage.to_json()}

    def failure(self, error: RequestError) -> bytes:
        """An error event and then [DONE], because clients that read up to [DONE] would hang without it."""
        return sse.event(error_object(error)) + sse.DONE
