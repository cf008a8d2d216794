"""Rings to play with, and real child processes that inherit descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from ipc.doorbell import Doorbell
from ipc.ring import RingReader, RingWriter, create_ring
from ipc.segment import Segment

ROOT = Path(__file__).resolve().parents[2]

Spawn = Callable[..., "subprocess.Popen[bytes]"]


def before_each_instruction(module: ModuleType, action: Callable[[], Any], visit: Callable[[], Any]) -> None:
    """Run `action`, and `visit` before each bytecode instruction of `module` that it executes: where a process may
    die, or lose the processor to another one.
    """

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            sys.settrace(trace)  # Python 3.12 takes notice of f_trace_opcodes only then
        visit()
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(previous)


class RingPair:
    """One ring with a writer and a reader, the reader on a mapping of its own."""

    def __init__(self, capacity: int, name: str = "test-ring") -> None:
        self.segment = create_ring(name, capacity)
        self.doorbell = Doorbell.create()
        self._mappings = [self.segment]
        self.writer = RingWriter(self.segment, self.doorbell)
        self.reader = RingReader(self.mapping(), self.doorbell)

    def mapping(self) -> Segment:
        """The same memory once more, as another process would see it."""
        mapping = Segment.attach(os.dup(self.segment.fd), self.segment.size)
        self._mappings.append(mapping)
        return mapping

    def close(self) -> None:
        self.writer.close()
        self.reader.close()
        for mapping in self._mappings:
            mapping.close()
        self.doorbell.close()


@pytest.fixture
def ring_pair() -> Iterator[Callable[[int], RingPair]]:
    pairs: list[RingPair] = []

    def create(capacity: int) -> RingPair:
        pairs.append(RingPair(capacity))
        return pairs[-1]

    yield create
    for pair in pairs:
        pair.close()


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """spawn(code, *arguments, fds=...) runs code in a new interpreter; its stdin and stdout are pipes."""
    children: list[subprocess.Popen[bytes]] = []

    def start(code: str, *arguments: object, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        child = subprocess.Popen(
            command, pass_fds=fds, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        children.append(child)
        return child

    yield start
    for child in children:
        with child:
            child.kill()
