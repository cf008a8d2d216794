"""Responses that clients asked to keep: a bounded SQLite database that several processes share.

Knows no HTTP. One thread at a time. A call takes a few milliseconds, and longer while another process writes.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Any, NamedTuple

import msgspec

from sparkinfer.api.responses.database import Database
from sparkinfer.errors import ConfigError, RequestError

log = logging.getLogger("responses")

MAX_RESPONSE_BYTES = 16 << 20  # with all the turns before it: some 50 ms to write and read as JSON
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    response BLOB NOT NULL,
    input BLOB NOT NULL
)
"""
# The newest ones that fit both limits stay.
_EVICT = """
DELETE FROM responses WHERE number <= (
    SELECT max(number) FROM (
        SELECT number, row_number() OVER newest AS place, sum(num_bytes) OVER newest AS total FROM responses
        WINDOW newest AS (ORDER BY number DESC)
    ) WHERE place > ? OR total > ?
)
"""


class StoredResponse(NamedTuple):
    """A response and the input that led to it, earlier turns included; both as the API spells them."""

    response: dict[str, Any]
    input: list[dict[str, Any]]


class ResponseStore:
    """What is stored belongs to an owner, and exists for nobody else. The oldest go when there is no room."""

    def __init__(self, path: str, max_responses: int, max_bytes: int) -> None:
        """path: of the database, ":memory:" for one of this process alone. Raises ConfigError if it cannot be used."""
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        try:
            self._database = Database(path, _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"[server] responses_directory: {path}: {error}") from None

    def wait_at_most(self, seconds: float) -> None:
        """How long the next calls wait for another process that writes."""
        self._database.wait_at_most(seconds)

    def put(self, owner: int, stored: StoredResponse) -> bool:
        """Keep a finished response; False where there is no room for it, or the database takes nothing."""
        response = msgspec.json.encode(stored.response)
        items = msgspec.json.encode(stored.input)
        num_bytes = len(response) + len(items)
        if num_bytes > min(self._max_bytes, MAX_RESPONSE_BYTES) or self._max_responses == 0:
            return False
        row = (stored.response["id"], owner, num_bytes, response, items)
        try:
            self._database.execute(
                "INSERT INTO responses (id, owner, num_bytes, response, input) VALUES (?, ?, ?, ?, ?)", row
            )
            self._database.execute(_EVICT, (self._max_responses, self._max_bytes))
        except sqlite3.Error as error:
            log.error("%s was not stored: %s", stored.response["id"], error)
            return False
        return True

    def get(self, owner: int, response_id: str) -> StoredResponse:
        """RequestError(404) when there is none of that id."""
        for response, items in self._select(owner, response_id):
            try:
                return StoredResponse(msgspec.json.decode(response), msgspec.json.decode(items))
            except msgspec.DecodeError as error:
                log.error("%s is damaged: %s", response_id[:64], error)
        raise RequestError(404, f"Response with id {response_id[:64]!r} not found.", code="response_not_found")

    def delete(self, owner: int, response_id: str) -> None:
        """RequestError(404) when there is none of that id."""
        self.get(owner, response_id)
        try:
            self._database.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
        except sqlite3.Error as error:
            log.error("%s was not deleted: %s", response_id[:64], error)
            raise RequestError(503, "Stored responses cannot be changed at the moment") from None

    def history(self, owner: int, response_id: str) -> list[dict[str, Any]]:
        """All items up to and with that response; RequestError(400), as the API has it, when there is none."""
        try:
            stored = self.get(owner, response_id)
        except RequestError as error:
            if error.status != 404:
                raise
            raise RequestError(
                400,
                f"Previous response with id {response_id[:64]!r} not found. Responses are stored where a request "
                'says "store": true, as long as there is room.',
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        return [*stored.input, *stored.response["output"]]

    def close(self) -> None:
        self._database.close()

    def _select(self, owner: int, response_id: str) -> list[tuple[bytes, bytes]]:
        try:
            return self._database.execute(
                "SELECT response, input FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
            )
        except sqlite3.Error as error:
            log.error("stored responses cannot be read: %s", error)
            raise RequestError(503, "Stored responses cannot be read at the moment") from None
