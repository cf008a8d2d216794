"""An SQLite file that several processes share and that may be damaged, or moved, while they run. Knows no response.

What cannot be read as a database is moved aside, for an operator to look at, and a new one takes its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

log = logging.getLogger("responses")

BUSY_S = 2.0  # while another process writes
DAMAGED = ".damaged"
_IN_MEMORY = ":memory:"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database:
    """A connection to the file, made anew where another process has put a new file in its place."""

    def __init__(self, path: str, schema: str) -> None:
        """path: ":memory:" for one of this process alone; schema: a statement that may be run again.

        Raises OSError or sqlite3.Error where no database can be there.
        """
        self._path = path
        self._schema = schema
        self._file: tuple[int, int] | None = None  # device and inode; None where nothing is open
        self._busy_ms = int(BUSY_S * 1000)
        with self._alone():
            self._connection = self._opened()

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """All rows. Raises sqlite3.Error; after damage the next call finds an empty database."""
        if self._path != _IN_MEMORY and (self._file is None or self._file != _identity(self._path)):
            self._open_again(is_damaged=False)
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            if self._path != _IN_MEMORY and _kind(error) in (*_DAMAGE, sqlite3.SQLITE_IOERR):
                self._open_again(is_damaged=_kind(error) in _DAMAGE)
            raise

    def wait_at_most(self, seconds: float) -> None:
        """How long the next calls wait for another process that writes."""
        self._busy_ms = max(0, int(seconds * 1000))

    def close(self) -> None:
        self._connection.close()

    def _open_again(self, *, is_damaged: bool) -> None:
        try:
            with self._alone():
                self._connection.close()
                opened, self._file = self._file, None  # what cannot be opened now is tried again by the next call
                if is_damaged and opened == _identity(self._path):  # else another process was here first
                    self._move_aside()
                self._connection = self._opened()
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.Error as error:
            if self._path == _IN_MEMORY or _kind(error) not in _DAMAGE:
                raise
        self._move_aside()
        return self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self._path != _IN_MEMORY:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # conversations: their owner's alone
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(self._schema)
        except sqlite3.Error:
            connection.close()
            raise
        self._file = _identity(self._path)
        return connection

    def _move_aside(self) -> None:
        log.error("%s is damaged: moved to %s%s, and begun anew", self._path, os.path.basename(self._path), DAMAGED)
        os.replace(self._path, self._path + DAMAGED)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._path + suffix, self._path + DAMAGED + suffix)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process opens the file, or moves it, meanwhile."""
        if self._path == _IN_MEMORY:
            yield
            return
        lock = os.open(self._path + ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _kind(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 of what the Python module says itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
