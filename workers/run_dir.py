"""The run directory: sockets and metric files of one service run. Removed at exit; left-overs of dead runs go at start.

A run is alive while its supervisor holds the lock on `lock`; the kernel drops the lock however the process ends.
Folders beside ours may be other users' or go at any time: whatever cannot be looked at or removed is left alone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal, TextIO

from ipc.endpoints import socket_path
from sparkinfer.errors import ConfigError

log = logging.getLogger("supervisor")

PREFIX = "sparkinfer-"
LONGEST_WORKER_NAME, MOST_GENERATIONS = "text-63", 10**6


def create_run_dir(configured: str) -> tuple[Path, TextIO]:
    """Create a fresh directory (and `metrics` in it); returns it with its held lock. What was there stays untouched.

    configured: [server] run_dir, the folder to make it in; empty for the system's temporary directory.
    Raises ConfigError when it cannot be made or its sockets' paths would be too long.
    """
    parent = Path(configured or tempfile.gettempdir())
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_dead_runs(parent)
        path, lock = _fresh_run(parent)
        socket_path(path, LONGEST_WORKER_NAME, MOST_GENERATIONS)
        (path / "metrics").mkdir()
    except OSError as error:
        raise ConfigError(f"[server] run_dir = {configured!r}: {error.strerror} ({error.filename})") from None
    except ValueError as error:  # socket_path
        shutil.rmtree(path)
        raise ConfigError(f"[server] run_dir = {configured!r}: {error}") from None
    return path, lock


def _fresh_run(parent: Path) -> tuple[Path, TextIO]:
    """A new folder with its held lock; another starter that took the lock before us has removed the folder, or will."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(path, "x")
        if lock is None:
            continue
        if (path / "lock").exists():
            return path, lock
        lock.close()


def _lock(path: Path, mode: Literal["x", "r+"]) -> TextIO | None:
    file = open(path / "lock", mode)  # noqa: SIM115 - held for the life of the process
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _remove_dead_runs(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        try:
            if path.lstat().st_uid == os.getuid():
                _remove_if_dead(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # no run, or removed meanwhile by its own supervisor or another start
        except OSError as error:
            log.warning("%s stays, whether its run is alive cannot be told: %s", path, error.strerror)


def _remove_if_dead(path: Path) -> None:
    lock = _lock(path, "r+")
    if lock is None:
        return
    with lock:
        shutil.rmtree(path, ignore_errors=True)
