"""What the supervisor tells a worker at birth: its name, its peers, and the descriptors it inherits.

Travels as JSON in a memfd whose number is the worker's only argument, so that no key shows in the process list.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec


class RingSpec(msgspec.Struct, frozen=True):
    """One ring: who writes, who reads, and its inherited descriptors."""

    writer: str
    reader: str
    segment_fd: int
    size: int                         # bytes of the segment
    doorbell_fd: int


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process starts from."""

    name: str                         # "http-0", "text-1", "gpu-0"
    index: int                        # its number among workers of its role
    slot: int                         # its row of the status board
    generation: int                   # 1 for the first process of this name, then counting
    supervisor_pid: int
    run_dir: str
    config: dict[str, Any]            # sparkinfer.config.Config as plain values
    model_path: str                   # the checkpoint on disk
    workers: tuple[str, ...]          # all names, in status-board order
    board_fd: int
    mask_table_fd: int
    rings: tuple[RingSpec, ...]       # only those that this worker writes or reads


def write_spec(spec: WorkerSpec) -> int:
    """A memfd holding `spec`, positioned at its start; the caller closes it after the spawn."""
    fd = os.memfd_create(f"sparkinfer-spec-{spec.name}", os.MFD_CLOEXEC)
    os.write(fd, msgspec.json.encode(spec))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_spec(fd: int) -> WorkerSpec:
    """The spec in memfd `fd`, which is closed."""
    with os.fdopen(fd, "rb") as file:
        return msgspec.json.decode(file.read(), type=WorkerSpec)
