"""The run directory: sockets and metric files of one service run. Removed at exit; left-overs of dead runs go at start.

A run is alive while its supervisor holds the lock on `lock`; the kernel drops the lock however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

from sparkinfer.errors import ConfigError

PREFIX = "sparkinfer-"


def create_run_dir(configured: str) -> tuple[Path, TextIO]:
    """Create the directory (and `metrics` in it); returns it with its held lock.

    configured: [server] run_dir; empty for a fresh folder under the system's temporary directory.
    Raises ConfigError when it cannot be made or another live server uses it.
    """
    try:
        if configured:
            path = Path(configured)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            _remove_dead_runs(Path(tempfile.gettempdir()))
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(path)
        if lock is None:
            raise ConfigError(f"[server] run_dir = {configured!r}: another server is using it")
        shutil.rmtree(path / "metrics", ignore_errors=True)
        (path / "metrics").mkdir()
    except OSError as error:
        raise ConfigError(f"[server] run_dir = {configured!r}: {error.strerror} ({error.filename})") from None
    return path, lock


def _lock(path: Path) -> TextIO | None:
    file = open(path / "lock", "w")  # noqa: SIM115 - held for the life of the process
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _remove_dead_runs(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        if not (path / "lock").exists() or path.stat().st_uid != os.getuid():
            continue
        lock = _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            lock.close()
