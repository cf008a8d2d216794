from __future__ import annotations

import os
import struct
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc.doorbell import Doorbell
from ipc.ring import RingCorrupt, RingReader, RingWriter, create_ring, ring_segment_bytes
from ipc.segment import Segment

from .conftest import RingPair

MAGIC, VERSION, CAPACITY, HEAD, WRITER_PID, TAIL, READER_PID, FRAMES = 0, 8, 16, 64, 72, 128, 136, 192


def frame_bytes(payload: bytes) -> int:
    return (len(payload) + 4 + 7) // 8 * 8


def poke(segment: Segment, offset: int, value: int) -> None:
    segment.buffer[offset : offset + 8] = struct.pack("<Q", value)


def peek(segment: Segment, offset: int) -> int:
    return struct.unpack_from("<Q", segment.buffer, offset)[0]


payloads = st.binary(max_size=80)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), payloads),
        st.tuples(st.just("drain"), st.none()),
        st.tuples(st.just("new_writer"), st.none()),
        st.tuples(st.just("new_reader"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(1, 24).map(lambda n: 8 * n), steps=operations)
def test_behaves_like_a_bounded_queue(capacity, steps):
    pair = RingPair(capacity)
    queue: deque[bytes] = deque()
    used = 0
    for action, argument in steps:
        if action == "push":
            if len(argument) > capacity - 4:
                with pytest.raises(ValueError, match=f"frame of {len(argument)} bytes"):
                    pair.writer.push(argument)
                continue
            fits = used + frame_bytes(argument) <= capacity
            assert pair.writer.push(argument) == fits
            if fits:
                queue.append(argument)
                used += frame_bytes(argument)
        elif action == "drain":
            assert pair.reader.drain() == list(queue)
            queue.clear()
            used = 0
        elif action == "new_writer":
            pair.writer.close()
            pair.writer = RingWriter(pair.segment, pair.doorbell)
        else:
            pair.reader.close()
            pair.reader = RingReader(pair.mapping(), pair.doorbell)
            queue.clear()
            used = 0
        assert pair.writer.free_bytes == capacity - used
    assert pair.reader.drain() == list(queue)
    pair.close()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_frames_of_every_size_at_every_offset(ring_pair, kind):
    capacity = 64
    pair = ring_pair(capacity)
    for start in range(0, capacity, 8):
        for length in range(capacity - 3):
            # Move to the position `start` modulo the capacity, in frames of 8 bytes.
            while peek(pair.segment, HEAD) % capacity != start:
                assert pair.writer.push(b"")
                pair.reader.drain()
            payload = os.urandom(length)
            assert pair.writer.push(kind(payload))
            assert pair.reader.drain() == [payload]


def test_full_ring_says_no_until_drained(ring_pair):
    pair = ring_pair(64)
    assert pair.writer.max_frame_bytes == 60
    assert pair.writer.push(bytes(60))
    assert pair.writer.free_bytes == 0
    assert not pair.writer.push(b"")
    assert pair.reader.drain() == [bytes(60)]
    assert pair.writer.push(b"")


def test_frame_that_can_never_fit_raises_and_publishes_nothing(ring_pair):
    pair = ring_pair(64)
    with pytest.raises(ValueError, match=r"'test-ring': a frame of 61 bytes exceeds 60"):
        pair.writer.push(bytes(61))
    assert pair.reader.drain() == []


def test_payload_that_is_not_made_of_bytes_publishes_nothing(ring_pair):
    pair = ring_pair(64)
    words = memoryview(bytes(16)).cast("Q")
    for _ in range(4):
        with pytest.raises((ValueError, IndexError)):
            pair.writer.push(words)
        assert pair.reader.drain() == []
        assert pair.writer.push(bytes(20))
        assert pair.reader.drain() == [bytes(20)]


def test_one_ring_of_the_bell_per_step(ring_pair):
    pair = ring_pair(1024)
    pair.writer.ring()
    assert not pair.reader.acknowledge()
    pair.writer.push(b"a")
    pair.writer.push(b"b")
    pair.writer.ring()
    pair.writer.ring()
    assert os.eventfd_read(pair.reader.fileno()) == 1
    pair.writer.ring()
    assert not pair.reader.acknowledge()


def test_new_reader_skips_what_a_dead_one_left(ring_pair):
    pair = ring_pair(256)
    pair.writer.push(b"old")
    pair.writer.push(b"older")
    successor = RingReader(pair.mapping(), pair.doorbell)
    assert (successor.reader_generation, successor.writer_generation) == (2, 1)
    assert successor.drain() == []
    assert pair.writer.free_bytes == 256
    pair.writer.push(b"new")
    assert successor.drain() == [b"new"]
    successor.close()


def test_new_writer_continues_and_rings_for_its_predecessor(ring_pair):
    pair = ring_pair(256)
    pair.writer.push(b"never rung")
    successor = RingWriter(pair.mapping(), pair.doorbell)
    assert successor.writer_generation == 2
    successor.ring()
    assert pair.reader.acknowledge()
    successor.push(b"next")
    assert pair.reader.drain() == [b"never rung", b"next"]
    successor.close()


def test_pids_are_those_of_the_attached_processes(ring_pair):
    pair = ring_pair(64)
    assert peek(pair.segment, WRITER_PID) == peek(pair.segment, READER_PID) == os.getpid()


@pytest.mark.parametrize("capacity", [0, -8, 7, 60])
def test_capacity_must_be_a_positive_multiple_of_eight(capacity):
    with pytest.raises(ValueError, match=f"'odd'.*{capacity}"):
        create_ring("odd", capacity)


def test_segment_of_a_ring_has_the_announced_size(ring_pair):
    assert ring_pair(64).segment.size == ring_segment_bytes(64)


@pytest.mark.parametrize(("offset", "value"), [(MAGIC, 1), (VERSION, 2), (CAPACITY, 128), (CAPACITY, 0)])
@pytest.mark.parametrize("end", [RingWriter, RingReader])
def test_wrong_header_is_refused_at_attach(end, offset, value):
    segment = create_ring("bad-ring", 64)
    doorbell = Doorbell.create()
    poke(segment, offset, value)
    with pytest.raises(RingCorrupt, match="'bad-ring'"):
        end(segment, doorbell)
    doorbell.close()
    segment.close()


@pytest.mark.parametrize("head", [72, 4, 2**64 - 8])
def test_impossible_head_is_noticed(ring_pair, head):
    pair = ring_pair(64)
    poke(pair.segment, HEAD, head)
    with pytest.raises(RingCorrupt, match=f"'test-ring': head {head} and tail 0"):
        pair.reader.drain()
    with pytest.raises(RingCorrupt, match="'test-ring'"):
        RingWriter(pair.mapping(), pair.doorbell)


@pytest.mark.parametrize("tail", [8, 3, 2**64 - 8])
def test_impossible_tail_is_noticed(ring_pair, tail):
    pair = ring_pair(64)
    poke(pair.segment, TAIL, tail)
    with pytest.raises(RingCorrupt, match=f"'test-ring': head 0 and tail {tail}"):
        assert pair.writer.free_bytes


def test_new_reader_heals_a_spoilt_tail(ring_pair):
    pair = ring_pair(64)
    pair.writer.push(b"lost")
    poke(pair.segment, TAIL, 12345)
    successor = RingReader(pair.mapping(), pair.doorbell)
    assert pair.writer.push(b"seen")
    assert successor.drain() == [b"seen"]
    successor.close()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4), st.binary(min_size=64, max_size=64))
def test_spoilt_frames_raise_or_stay_inside(lengths, noise):
    """Whatever the frames hold, draining ends, and yields nothing that reaches beyond the head."""
    pair = RingPair(64)
    pair.writer.push(bytes(60))
    pair.segment.buffer[FRAMES : FRAMES + 64] = noise
    for index, length in enumerate(lengths):
        struct.pack_into("<I", pair.segment.buffer, FRAMES + 16 * index, length)
    try:
        drained = sum(map(frame_bytes, pair.reader.drain()))
    except RingCorrupt:
        drained = 0
    assert drained in (0, 64)
    assert peek(pair.segment, TAIL) == drained
    pair.close()


def test_length_beyond_the_head_names_the_place(ring_pair):
    pair = ring_pair(64)
    pair.writer.push(b"one")
    pair.reader.drain()
    pair.writer.push(b"two")
    struct.pack_into("<I", pair.segment.buffer, FRAMES + 8, 5)
    with pytest.raises(RingCorrupt, match="'test-ring': a frame of 5 bytes at 8 reaches beyond the head"):
        pair.reader.drain()
