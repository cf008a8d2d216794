"""Where a process listens: one path per worker and generation.

Owns the spelling of the paths; never opens one. A respawned worker listens on a new path, so that no message meant
for its predecessor can reach it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# sizeof(sockaddr_un.sun_path) is 108 on Linux, the last byte is the terminator (unix(7))
MAX_SOCKET_PATH_BYTES = 107

_WORKER_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def socket_path(run_dir: str | Path, worker_name: str, generation: int) -> Path:
    """The socket file of one worker's inbox, `{run_dir}/{worker_name}.{generation}.sock`.

    Raises ValueError when the kernel would cut it short, or when the worker's name is no plain word.
    """
    if not _WORKER_NAME.fullmatch(worker_name) or generation < 0:
        raise ValueError(f"worker {worker_name!r}, generation {generation}: expected a word and a number >= 0")
    path = Path(run_dir) / f"{worker_name}.{generation}.sock"
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"run directory {str(run_dir)!r} is too long: socket path {path.name!r} in it takes {num_bytes} bytes, "
            f"at most {MAX_SOCKET_PATH_BYTES} are allowed"
        )
    return path


def inbox(run_dir: str | Path, worker_name: str, generation: int) -> str:
    """The ZeroMQ endpoint of one worker's inbox. Raises ValueError as `socket_path` does."""
    return f"ipc://{socket_path(run_dir, worker_name, generation)}"
