"""Either end of a ring dies at every instruction and at every byte of every store; nobody sees half a frame."""

from __future__ import annotations

import random
import select
import signal
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import ipc.ring
from ipc.doorbell import Doorbell
from ipc.ring import RingReader, RingWriter
from ipc.segment import Segment

from .conftest import RingPair, before_each_instruction

CAPACITY, HEADER = 64, 192
HEAD, TAIL = 64, 128


def states_during(segment: Segment, action: Callable[[], Any]) -> list[bytes]:
    """The segment as it would be left by a death before each instruction of ipc/ring.py, and at the end."""
    states: list[bytes] = []
    before_each_instruction(ipc.ring, action, lambda: states.append(segment.buffer[:]))
    states.append(segment.buffer[:])
    return states


def torn_states(states: list[bytes]) -> Iterator[bytes]:
    """`states`, and what lies between: header words change at once, other bytes in any order."""
    yield states[0]
    for before, after in pairwise(states):
        if before == after:
            continue
        changed = [i for i in range(HEADER, len(after)) if before[i] != after[i]]
        for order in (changed, changed[::-1]):
            torn = bytearray(before)
            for i in order:
                torn[i] = after[i]
                yield bytes(torn)
        yield after


def with_noise(state: bytes) -> bytes:
    """The same ring, with noise where nothing is published."""
    head, = struct.unpack_from("<Q", state, HEAD)
    tail, = struct.unpack_from("<Q", state, TAIL)
    noisy = bytearray(state)
    for position in range(head, tail + CAPACITY):
        noisy[HEADER + position % CAPACITY] = 0xA5
    return bytes(noisy)


class Replay:
    """A ring in the state that a death left, with its surviving reader."""

    def __init__(self, state: bytes) -> None:
        self.segment = Segment.create("replay", len(state))
        self.doorbell = Doorbell.create()
        self.segment.buffer[:] = state
        self.segment.buffer[HEAD : HEAD + 8] = state[TAIL : TAIL + 8]
        self.reader = RingReader(self.segment, self.doorbell)
        self.segment.buffer[:] = state

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.segment.close()
        self.doorbell.close()


@pytest.fixture(params=range(0, CAPACITY, 8))
def pair_at(request, ring_pair) -> RingPair:
    """A ring whose next frame starts at each position, with one frame unread."""
    pair = ring_pair(CAPACITY)
    for _ in range(request.param // 8):
        pair.writer.push(b"")
    pair.reader.drain()
    assert pair.writer.push(b"before")
    return pair


def test_writer_dies_anywhere(pair_at):
    frame = b"a frame of many bytes, not 1"
    states = states_during(pair_at.segment, lambda: pair_at.writer.push(frame))
    assert len(states) > 50
    seen = set()
    for state in torn_states(states):
        with Replay(with_noise(state)) as replay:
            drained = replay.reader.drain()
            assert drained in ([b"before"], [b"before", frame])
            seen.add(len(drained))
            successor = RingWriter(replay.segment, replay.doorbell)
            assert successor.push(b"after")
            successor.close()
            assert replay.reader.drain() == [b"after"]
    assert seen == {1, 2}


def test_reader_dies_anywhere(pair_at):
    states = states_during(pair_at.segment, pair_at.reader.drain)
    assert len(states) > 50
    for state in torn_states(states):
        with Replay(state) as replay:
            writer = RingWriter(replay.segment, replay.doorbell)
            assert writer.free_bytes in (CAPACITY, CAPACITY - 16)
            successor = RingReader(replay.segment, replay.doorbell)
            assert writer.free_bytes == CAPACITY
            assert writer.push(b"after")
            assert successor.drain() == [b"after"]
            successor.close()
            writer.close()


def test_dies_while_attaching(pair_at):
    ends: list[RingWriter | RingReader] = []
    writing = states_during(pair_at.segment, lambda: ends.append(RingWriter(pair_at.segment, pair_at.doorbell)))
    for state in writing:
        with Replay(state) as replay:
            assert replay.reader.drain() == [b"before"]
    reading = states_during(pair_at.segment, lambda: ends.append(RingReader(pair_at.segment, pair_at.doorbell)))
    for state in reading:
        with Replay(state) as replay:
            successor = RingReader(replay.segment, replay.doorbell)
            assert successor.drain() == []
            successor.close()
    for end in ends:
        end.close()


WRITER = """
import struct, sys
from ipc.doorbell import Doorbell
from ipc.ring import RingWriter
from ipc.segment import Segment
segment_fd, size, doorbell_fd = map(int, sys.argv[1:])
writer = RingWriter(Segment.attach(segment_fd, size), Doorbell.attach(doorbell_fd))
number = 0
while True:
    number += writer.push(struct.pack("<Q", number) + bytes([number % 251]) * (number * 37 % 300))
    writer.ring()
"""

READER = """
import os, select, struct, sys
from ipc.doorbell import Doorbell
from ipc.ring import RingReader
from ipc.segment import Segment
segment_fd, size, doorbell_fd = map(int, sys.argv[1:])
reader = RingReader(Segment.attach(segment_fd, size), Doorbell.attach(doorbell_fd))
os.write(1, b"r")
expected = None
while True:
    select.select([reader], [], [])
    reader.acknowledge()
    for frame in reader.drain():
        if frame == b"stop":
            sys.exit(0)
        number, = struct.unpack_from("<Q", frame)
        assert expected in (None, number) and frame[8:] == bytes([number % 251]) * (number * 37 % 300)
        if expected is None:
            os.write(1, b"x")
        expected = number + 1
"""


def numbered(number: int) -> bytes:
    return struct.pack("<Q", number) + bytes([number % 251]) * (number * 37 % 300)


def test_writer_process_killed_mid_burst(ring_pair, spawn):
    pair = ring_pair(4096)
    pair.writer.close()
    fds = (pair.segment.fd, pair.doorbell.fd)
    randomly = random.Random(20)
    total = 0
    for generation in range(2, 22):
        child = spawn(WRITER, fds[0], pair.segment.size, fds[1], fds=fds)
        frames: list[bytes] = []
        enough = randomly.randrange(1, 3000)
        while len(frames) < enough:
            select.select([pair.reader], [], [])
            pair.reader.acknowledge()
            frames += pair.reader.drain()
        child.kill()
        assert child.wait() == -signal.SIGKILL
        frames += pair.reader.drain()
        assert frames == [numbered(number) for number in range(len(frames))]
        assert pair.reader.writer_generation == generation
        total += len(frames)
    assert total > 10_000
    pair.writer = RingWriter(pair.segment, pair.doorbell)


def test_reader_process_killed_mid_burst(ring_pair, spawn):
    pair = ring_pair(4096)
    fds = (pair.segment.fd, pair.doorbell.fd)
    number = 0
    for _ in range(8):
        child = spawn(READER, fds[0], pair.segment.size, fds[1], fds=fds)
        assert child.stdout.read(1) == b"r"
        while not select.select([child.stdout], [], [], 0)[0]:
            number += pair.writer.push(numbered(number))
            pair.writer.ring()
        assert child.stdout.read(1) == b"x"
        for _ in range(500):
            number += pair.writer.push(numbered(number))
            pair.writer.ring()
        child.kill()
        assert child.wait() == -signal.SIGKILL
        while pair.writer.push(numbered(number)):
            number += 1  # nobody reads: the ring fills up, and the writer goes on
    child = spawn(READER, fds[0], pair.segment.size, fds[1], fds=fds)
    assert child.stdout.read(1) == b"r"
    assert pair.writer.push(numbered(number))
    assert pair.writer.push(b"stop")
    pair.writer.ring()
    assert child.wait() == 0
