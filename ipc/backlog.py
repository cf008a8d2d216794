"""A ring writer with a bounded place to wait when the ring is full.

Owns the frames that did not fit; never knows whose they are. Keeps order: while anything waits, everything waits.
"""

from __future__ import annotations

from collections import deque

from ipc.ring import Payload, RingWriter


class BackloggedWriter:
    """Pushes never fail and never block; when the reader stays away, `overflowed` asks the caller to give it up.

    writer:     the ring, of which this object is the only user
    max_bytes:  most payload bytes that may wait
    """

    def __init__(self, writer: RingWriter, max_bytes: int) -> None:
        self._writer = writer
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()
        self.num_waiting_bytes = 0
        self.overflowed = False  # frames were dropped: the stream has a gap until `reset`

    def push(self, payload: Payload) -> None:
        """Publish a frame, or keep it for `flush`; beyond max_bytes it is dropped and `overflowed` is set."""
        if self.overflowed or (not self._waiting and self._writer.push(payload)):
            return
        length = len(payload)
        if length > self._writer.max_frame_bytes:
            raise ValueError(f"ring {self._writer.name!r}: a frame of {length} bytes can never fit")
        if self.num_waiting_bytes + length > self._max_bytes:
            self.overflowed = True
            return
        self._waiting.append(bytes(payload))
        self.num_waiting_bytes += length

    def flush(self) -> bool:
        """Publish what has room now; True when nothing waits any more. Call it every step."""
        while self._waiting and self._writer.push(self._waiting[0]):
            self.num_waiting_bytes -= len(self._waiting.popleft())
        return not self._waiting

    def ring(self) -> None:
        """Flush, and wake the reader if anything was pushed: once a step, at its end."""
        self.flush()
        self._writer.ring()

    def reset(self) -> None:
        """Forget what waits: the reader died, or its requests were aborted after an overflow."""
        self._waiting.clear()
        self.num_waiting_bytes = 0
        self.overflowed = False
