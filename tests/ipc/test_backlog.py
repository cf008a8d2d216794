from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc.backlog import BackloggedWriter

from .conftest import RingPair

steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.binary(max_size=60)), st.just(("step", b"")), st.just(("drain", b""))
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_keeps_order_whatever_the_reader_does(steps):
    pair = RingPair(64)
    writer = BackloggedWriter(pair.writer, max_bytes=10_000)
    sent: list[bytes] = []
    received: list[bytes] = []
    for action, frame in steps:
        if action == "push":
            writer.push(frame)
            sent.append(frame)
        elif action == "step":
            writer.ring()
        else:
            received += pair.reader.drain()
    while not writer.flush():
        received += pair.reader.drain()
    received += pair.reader.drain()
    assert received == sent
    assert writer.num_waiting_bytes == 0
    assert not writer.overflowed
    pair.close()


def test_overflow_leaves_a_prefix_and_says_so(ring_pair):
    pair = ring_pair(64)
    writer = BackloggedWriter(pair.writer, max_bytes=100)
    for number in range(5):
        writer.push(bytes([number]) * 60)
        assert writer.overflowed == (number > 1)
    assert writer.num_waiting_bytes == 60
    writer.push(b"small enough, but behind a gap")
    received = pair.reader.drain()
    assert writer.flush()
    assert received + pair.reader.drain() == [bytes(60), b"\1" * 60]


def test_reset_starts_afresh(ring_pair):
    pair = ring_pair(64)
    writer = BackloggedWriter(pair.writer, max_bytes=60)
    for _ in range(3):
        writer.push(bytes(60))
    assert writer.overflowed
    writer.reset()
    assert not writer.overflowed
    assert writer.num_waiting_bytes == 0
    pair.reader.drain()
    writer.push(b"new life")
    writer.ring()
    assert pair.reader.acknowledge()
    assert pair.reader.drain() == [b"new life"]


def test_flushed_frames_ring_the_bell(ring_pair):
    pair = ring_pair(64)
    writer = BackloggedWriter(pair.writer, max_bytes=100)
    writer.push(bytes(60))
    writer.push(b"waits")
    writer.ring()
    assert pair.reader.acknowledge()
    assert pair.reader.drain() == [bytes(60)]
    assert not pair.reader.acknowledge()
    writer.ring()
    assert pair.reader.acknowledge()
    assert pair.reader.drain() == [b"waits"]


def test_waiting_frames_are_copies(ring_pair):
    pair = ring_pair(64)
    writer = BackloggedWriter(pair.writer, max_bytes=100)
    writer.push(bytes(60))
    reused = bytearray(b"first")
    writer.push(memoryview(reused))
    reused[:] = b"later"
    pair.reader.drain()
    writer.flush()
    assert pair.reader.drain() == [b"first"]


def test_frame_larger_than_the_ring_raises_even_when_others_wait(ring_pair):
    pair = ring_pair(64)
    writer = BackloggedWriter(pair.writer, max_bytes=1000)
    for _ in range(3):
        with pytest.raises(ValueError, match="'test-ring'"):
            writer.push(bytes(61))
        writer.push(bytes(60))
