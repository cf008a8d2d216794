"""A single-producer, single-consumer ring of byte frames in a Segment.

Owns the header and the frames; never knows what a frame means. No locks and no blocking: each word has one writer,
and either process may die at any instruction without harm to the other.

    offset  bytes  field               writer
         0      8  magic "SPKRING1"    supervisor
         8      8  version             supervisor
        16      8  capacity in bytes   supervisor
        64      8  head                ring writer      bytes ever published, a multiple of 8
        72      8  writer pid          ring writer
        80      8  writer generation   ring writer      +1 by each writer that attaches
       128      8  tail                ring reader      bytes ever consumed, a multiple of 8
       136      8  reader pid          ring reader
       144      8  reader generation   ring reader      +1 by each reader that attaches
       192      -  frames              ring writer      `capacity` bytes

    frame = u32 length | payload | zero to seven bytes up to a multiple of 8

Words are little-endian u64 that never wrap in practice (2^64 bytes). A frame lies at position % capacity and its
payload may run over the end and continue at the start; the length never does, for positions are multiples of 8.

Order: the payload is stored first and head second; the reader loads head first and the payload second. What lies
beyond head does not exist, so that a writer killed in the middle of a frame leaves nothing behind.

NOTE: this order holds by x86-64's total store order (and glibc fences its non-temporal copies). aarch64 would need
a store-release of head and tail and a load-acquire on the other side, which Python cannot express.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from ipc.doorbell import Doorbell
from ipc.segment import Segment

Payload = bytes | bytearray | memoryview

_MAGIC: Final = int.from_bytes(b"SPKRING1", "little")
_VERSION: Final = 1
_HEADER_BYTES: Final = 192
_LENGTH: Final = struct.Struct("<I")

# indices of u64 words
_MAGIC_WORD, _VERSION_WORD, _CAPACITY_WORD = 0, 1, 2
_HEAD, _WRITER_PID, _WRITER_GENERATION = 8, 9, 10
_TAIL, _READER_PID, _READER_GENERATION = 16, 17, 18


class RingCorrupt(Exception):
    """The header or a frame of a ring holds an impossible value; the message names the ring and the value."""


def create_ring(name: str, capacity: int) -> Segment:
    """A segment with an empty ring of `capacity` bytes, a multiple of 8 (the supervisor's business)."""
    if capacity < 8 or capacity % 8:
        raise ValueError(f"ring {name!r}: capacity must be a positive multiple of 8 bytes, got {capacity}")
    segment = Segment.create(name, ring_segment_bytes(capacity))
    with memoryview(segment.buffer) as view, view[:_HEADER_BYTES].cast("Q") as words:
        words[_VERSION_WORD] = _VERSION
        words[_CAPACITY_WORD] = capacity
        words[_MAGIC_WORD] = _MAGIC
    return segment


def ring_segment_bytes(capacity: int) -> int:
    """Size of the segment that holds a ring of `capacity` bytes: what Segment.attach asks for."""
    return _HEADER_BYTES + capacity


class _Ring:
    """What both ends share: the checked header and the typed views of the segment."""

    def __init__(self, segment: Segment, doorbell: Doorbell) -> None:
        self.name = segment.name
        self._buffer = segment.buffer
        self._doorbell = doorbell
        self._words = memoryview(segment.buffer)[:_HEADER_BYTES].cast("Q")
        self.capacity = self._words[_CAPACITY_WORD]
        found = (self._words[_MAGIC_WORD], self._words[_VERSION_WORD], self.capacity)
        expected = (_MAGIC, _VERSION, segment.size - _HEADER_BYTES)
        if found != expected:
            self._words.release()
            raise RingCorrupt(f"ring {self.name!r}: (magic, version, capacity) is {found}, expected {expected}")

    @property
    def writer_generation(self) -> int:
        """How many writers have attached so far."""
        return self._words[_WRITER_GENERATION]

    @property
    def reader_generation(self) -> int:
        """How many readers have attached so far."""
        return self._words[_READER_GENERATION]

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload that fits an empty ring."""
        return self.capacity - _LENGTH.size

    def _check(self, head: int, tail: int) -> None:
        if not 0 <= head - tail <= self.capacity or head % 8 or tail % 8:
            raise RingCorrupt(f"ring {self.name!r}: head {head} and tail {tail} with a capacity of {self.capacity}")

    def close(self) -> None:
        """Let go of the segment, which can be closed then; the segment and the doorbell stay the caller's."""
        self._words.release()


class RingWriter(_Ring):
    """The only writer of a ring, in one thread of one process. Attaching continues at head."""

    def __init__(self, segment: Segment, doorbell: Doorbell) -> None:
        super().__init__(segment, doorbell)
        self._lengths = memoryview(segment.buffer).cast("B")[_HEADER_BYTES:].cast("I")
        self._head = self._words[_HEAD]
        self._tail = self._words[_TAIL]  # as last seen; the reader's is the same or further on
        self._check(self._head, self._tail)
        self._words[_WRITER_PID] = os.getpid()
        self._words[_WRITER_GENERATION] += 1
        self._unrung = self._head != self._tail  # a writer that died may not have rung for its last frames

    @property
    def free_bytes(self) -> int:
        """Room for frames, each of which takes 4 bytes more than its payload, rounded up to a multiple of 8."""
        self._tail = self._words[_TAIL]
        self._check(self._head, self._tail)
        return self.capacity - (self._head - self._tail)

    def push(self, payload: Payload) -> bool:
        """Publish one frame; False when there is no room now.

        payload:  a memoryview must be of single bytes
        Raises ValueError when the frame could not fit an empty ring either.
        """
        length = len(payload)
        head = self._head
        size = (length + 11) & -8
        if head + size - self._tail > self.capacity and size > self.free_bytes:
            if size > self.capacity:
                raise ValueError(f"ring {self.name!r}: a frame of {length} bytes exceeds {self.max_frame_bytes}")
            return False
        offset = head % self.capacity
        if offset + size <= self.capacity:
            start = offset + _HEADER_BYTES + 4
            self._lengths[offset >> 2] = length
            self._buffer[start : start + length] = payload
        else:
            data = _LENGTH.pack(length) + payload
            if len(data) != length + 4:
                raise ValueError(f"ring {self.name!r}: a payload must consist of bytes")
            self._store(offset, data)
        self._words[_HEAD] = self._head = head + size
        self._unrung = True
        return True

    def _store(self, offset: int, data: bytes) -> None:
        start = offset + _HEADER_BYTES
        room = min(self.capacity - offset, len(data))
        self._buffer[start : start + room] = data[:room]
        if room < len(data):
            self._buffer[_HEADER_BYTES : _HEADER_BYTES + len(data) - room] = data[room:]

    def ring(self) -> None:
        """Wake the reader if anything was pushed since the last call: once a step, at its end."""
        if self._unrung:
            self._unrung = False
            self._doorbell.ring()

    def close(self) -> None:
        """Let go of the segment, which can be closed then; the segment and the doorbell stay the caller's."""
        self._lengths.release()
        super().close()


class RingReader(_Ring):
    """The only reader of a ring. Attaching skips what a dead reader left: its requests are gone with it."""

    def __init__(self, segment: Segment, doorbell: Doorbell) -> None:
        super().__init__(segment, doorbell)
        head = self._words[_HEAD]
        self._check(head, head)
        self._words[_READER_PID] = os.getpid()
        self._words[_READER_GENERATION] += 1
        self._words[_TAIL] = self._tail = head

    def fileno(self) -> int:
        """The doorbell's descriptor, for `loop.add_reader`; on wake-up `acknowledge` first, then `drain`."""
        return self._doorbell.fd

    def acknowledge(self) -> bool:
        """Silence the doorbell; True when it had rung."""
        return self._doorbell.acknowledge()

    def drain(self) -> list[bytes]:
        """Every published frame in order, copied out; the room is given back at once. Never blocks."""
        tail = self._tail
        head = self._words[_HEAD]
        if head == tail:
            return []
        self._check(head, tail)
        start = tail % self.capacity + _HEADER_BYTES
        end = start + head - tail
        limit = _HEADER_BYTES + self.capacity
        data = self._buffer[start:end]
        if end > limit:
            data += self._buffer[_HEADER_BYTES : end - self.capacity]
        frames = self._split(data)
        self._words[_TAIL] = self._tail = head
        return frames

    def _split(self, data: bytes) -> list[bytes]:
        frames = []
        lengths = memoryview(data).cast("I")
        offset, end = 0, len(data)
        while offset < end:
            length = lengths[offset >> 2]
            size = (length + 11) & -8
            if offset + size > end:
                at = self._tail + offset
                raise RingCorrupt(f"ring {self.name!r}: a frame of {length} bytes at {at} reaches beyond the head")
            frames.append(data[offset + 4 : offset + 4 + length])
            offset += size
        return frames
