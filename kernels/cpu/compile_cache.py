"""Where compiled kernels are kept: a folder that changes with the sources and the CPU, so that none outlives what it is
made of. Several processes may fill it at once: each kernel has a lock, held while it is compiled.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from kernels.cpu import machine

HERE = Path(__file__).parent
CHECKSUM_BYTES = hashlib.sha256().digest_size  # in front of every object file

_folder = HERE / "__pycache__"


def use_folder(folder: Path) -> None:
    """Keep compiled kernels below `folder`, from now on."""
    global _folder
    _folder = folder


def object_file(name: str, make: Callable[[], bytes], waits: bool = True) -> bytes | None:
    """The kernel's object file, from the folder or made; where the folder cannot be written, nothing is kept.

    waits: for another process or thread that makes it; else None then
    """
    path = _folder / _digest() / f"{name}.o"
    found = _read(path)
    if found is not None:
        return found
    with _lock_of(path, waits) as is_ours:
        if not is_ours:
            return None
        found = _read(path)
        if found is None:
            found = make()
            with contextlib.suppress(OSError):
                _write(path, found)
    return found


@cache
def _digest() -> str:
    """Of every source in this folder, the compiler's version, the CPU."""
    digest = hashlib.sha256(machine.description().encode())
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _read(path: Path) -> bytes | None:
    """None where there is none, or not all of it: LLVM would end the process over a damaged one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, found = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
    return found if checksum == hashlib.sha256(found).digest() else None


def _write(path: Path, content: bytes) -> None:
    """At once, for those that read meanwhile."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(hashlib.sha256(content).digest() + content)
    unfinished.replace(path)


@contextlib.contextmanager
def _lock_of(path: Path, waits: bool) -> Iterator[bool]:
    """Whether the kernel is ours to make."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError:  # another has it, or the file system has no locks
            yield waits
            return
        yield True
    finally:
        os.close(descriptor)
