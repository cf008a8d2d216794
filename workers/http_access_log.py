"""One line of JSON on stdout for each HTTP request that ended: who, what, how long; never what was said."""

from __future__ import annotations

import os
import time

from sparkinfer.api.sse import encode_json
from workers.http_exchange import Exchange

_STDOUT = 1
_MAX_PATH = 256  # characters: a line has to fit what a pipe takes in one piece


class AccessLog:
    """Writes while `is_enabled`."""

    def __init__(self, worker: str, is_enabled: bool) -> None:
        """worker: this process's name."""
        self._worker = worker
        self._is_enabled = is_enabled

    def write(self, exchange: Exchange, status: int) -> None:
        """The request was answered, or its client left."""
        if not self._is_enabled:
            return
        scope = exchange.scope
        line = {
            "time": round(time.time(), 3),
            "worker": self._worker,
            "request_id": exchange.request_id,
            "client": scope.client,
            "method": scope.method[:16],
            "path": scope.path[:_MAX_PATH],
            "status": status,
            "seconds": round(time.monotonic() - exchange.received_at, 6),
        }
        if exchange.usage is not None:
            line["prompt_tokens"] = exchange.usage.prompt_tokens
            line["completion_tokens"] = exchange.usage.completion_tokens
        os.write(_STDOUT, encode_json(line) + b"\n")
