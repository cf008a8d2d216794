"""Says that a download will not fit before it starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from sparkinfer.errors import CheckpointError


def check_free_bytes(folder: Path, num_bytes: int) -> None:
    """Raises CheckpointError if the file system of `folder`, which exists, has less than `num_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise CheckpointError(f"{folder}: the download needs {num_bytes} bytes, {free} are free")
