"""A file whose SHA-256 is known beforehand: placed whole or not at all, and checked again only when it has changed.

Beside FILE lies FILE.verified with the digest, size and modification time at which the content was last found right,
so that a start costs a stat() and not a pass over the file; whoever changes the file changes its time.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20


def is_intact(path: Path, sha256: str, num_bytes: int) -> bool:
    """Whether the file at `path` has that size and content; hashes it if it isn't the one verified last."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size != num_bytes:
        return False
    if _read_stamp(path) == _stamp(sha256, status):
        return True
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            return False
    with suppress(OSError):  # a read-only folder: the file is hashed at each start
        _write_stamp(path, _stamp(sha256, status))
    return True


def place(source: IO[bytes], path: Path, scratch: Path, sha256: str) -> bool:
    """Copy `source` to `path` if its digest is right; returns whether it was. `scratch` is on the same file system.

    The name appears only once the content is on the disk, so a crash leaves the old state or the new one.
    """
    digest = hashlib.sha256()
    partial = scratch / path.name
    with partial.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != sha256:
        return False
    partial.replace(path)
    _sync_folder(path.parent)
    _write_stamp(path, _stamp(sha256, path.stat()))
    return True


def _stamp(sha256: str, status: os.stat_result) -> str:
    return f"{sha256} {status.st_size} {status.st_mtime_ns}\n"


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _read_stamp(path: Path) -> str | None:
    try:
        return _stamp_path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _write_stamp(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.verified.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(_stamp_path(path))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
