"""Stored responses without waiting for their database: it has a thread of its own. Knows no API's words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sparkinfer.api.responses.database import BUSY_S
from sparkinfer.api.responses.store import ResponseStore, StoredResponse
from sparkinfer.api.schema import Object
from sparkinfer.config import ServerConfig
from sparkinfer.errors import ConfigError

T = TypeVar("T")
Items = list[dict[str, Any]]


class ResponseKeeper:
    """A ResponseStore for an event loop. Nobody waits longer than BUSY_S for another process that writes."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")

    async def put(self, owner: int, stored: StoredResponse) -> bool:
        """Keep a finished response; False where it could not be kept."""
        return await self._run(lambda: self._store.put(owner, stored))

    async def get(self, owner: int, response_id: str) -> StoredResponse:
        """RequestError 404 where there is none, 503 while the database cannot be read."""
        return await self._run(lambda: self._store.get(owner, response_id))

    async def delete(self, owner: int, response_id: str) -> None:
        """As `get`."""
        await self._run(lambda: self._store.delete(owner, response_id))

    async def history(self, owner: int, body: Object) -> Items:
        """The items that previous_response_id of `body` stands for; RequestError 400 where there are none."""
        previous = body.get("previous_response_id")
        if not isinstance(previous, str):
            return []
        return await self._run(lambda: self._store.history(owner, previous))

    async def _run(self, work: Callable[[], T]) -> T:
        until = time.monotonic() + BUSY_S

        def in_time() -> T:
            self._store.wait_at_most(until - time.monotonic())
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_time)


def open_keeper(config: ServerConfig, run_dir: str) -> ResponseKeeper:
    """Where the configuration says; without a directory it lives as long as the run does. Raises ConfigError."""
    directory = config.responses_directory or run_dir
    if config.responses_directory:
        try:
            Path(directory).expanduser().mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"[server] responses_directory = {directory!r}: {error.strerror}") from None
    path = str(Path(directory).expanduser() / "responses.sqlite") if directory else ":memory:"
    return ResponseKeeper(ResponseStore(path, config.max_stored_responses, config.stored_responses_mib << 20))
