"""What the gpu scheduler tells a text worker: frames of tokens and frames of events.

Owns the layout of a frame; never knows a ring, text, or what a token means. Integers and floats are little-endian.

    offset  bytes  field
         0      1  kind: 1 TOKENS, 2 EVENTS, 3 SCORES

    TOKENS, and SCORES of tokens of prompts
         1      3  zero
         4      4  count            u32
         8  24 x count  records, in the order in which they were appended:
              0  8  request_id      u64
              8  4  token_id        i32
             12  2  choice          u16
             14  2  num_top         u16     alternatives of this token
             16  4  logprob         f32     natural log; 0 without bit 0
             20  4  flags           u32     bit 0: has a logprob
         -  8 x num_top  for each record with num_top > 0:  num_top x i32 token ids, num_top x f32 logprobs

    EVENTS
         1      -  msgpack list of SequenceEvent

Writer: gpu scheduler; per step and text worker SCORES first, MAX_SCORES a frame and one sequence's, then a frame of
TOKENS and one of EVENTS at most. Reader: that text worker. The ring
publishes a frame whole, so there is no order to keep inside it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ipc.codec import ENCODER, SEQUENCE_EVENTS, MalformedMessage
from ipc.messages import SequenceEvent

TOKENS: Final = 1
EVENTS: Final = 2
SCORES: Final = 3

MAX_SCORES: Final = 256  # with 20 alternatives each: 47 KB

RECORD_DTYPE: Final = np.dtype(
    [
        ("request_id", "<u8"),
        ("token_id", "<i4"),
        ("choice", "<u2"),
        ("num_top", "<u2"),
        ("logprob", "<f4"),
        ("flags", "<u4"),
    ]
)
_HAS_LOGPROB: Final = 1
_HEADER: Final = struct.Struct("<B3xI")
_RECORD: Final = struct.Struct("<QiHHfI")

Top = Sequence[tuple[int, float]]
TokenRecord = tuple[int, int, int, float | None, Top]  # request_id, choice, token_id, logprob, top (best first)


class TokenFrameWriter:
    """Collects the tokens of one step for one text worker. Reusable: `to_bytes` empties it."""

    def __init__(self, kind: int = TOKENS) -> None:
        self._kind = kind
        self._records: list[bytes] = []
        self._tops: list[bytes] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, request_id: int, choice: int, token_id: int, logprob: float | None = None, top: Top = ()) -> None:
        """Add one token. Raises struct.error when a value does not fit its field."""
        if logprob is None:
            record = _RECORD.pack(request_id, token_id, choice, len(top), 0.0, 0)
        else:
            record = _RECORD.pack(request_id, token_id, choice, len(top), logprob, _HAS_LOGPROB)
        if top:
            token_ids, logprobs = zip(*top, strict=True)
            self._tops.append(struct.pack(f"<{len(top)}i{len(top)}f", *token_ids, *logprobs))
        self._records.append(record)
        self._count += 1

    def extend(self, request_ids: npt.ArrayLike, choices: npt.ArrayLike, token_ids: npt.ArrayLike) -> None:
        """Add many tokens without logprobs; three sequences of one length."""
        ids = np.asarray(token_ids)
        records = np.zeros(len(ids), RECORD_DTYPE)
        records["request_id"] = request_ids
        records["choice"] = choices
        records["token_id"] = ids
        self._records.append(records.tobytes())
        self._count += len(ids)

    def to_bytes(self) -> bytes:
        """The frame of everything added since the last call."""
        frame = b"".join((_HEADER.pack(self._kind, self._count), *self._records, *self._tops))
        self._records.clear()
        self._tops.clear()
        self._count = 0
        return frame


def pack_events(events: list[SequenceEvent]) -> bytes:
    """An EVENTS frame."""
    return b"\x02" + ENCODER.encode(events)


def unpack(frame: bytes, kind: int = TOKENS) -> list[TokenRecord]:
    """The records of a frame of TOKENS or SCORES, in order. Raises MalformedMessage."""
    if len(frame) < _HEADER.size or frame[0] != kind:
        found = frame[:1].hex() or "none"
        raise MalformedMessage(f"token frame: {len(frame)} bytes of kind {found}, expected {kind:02x}")
    count = _HEADER.unpack_from(frame)[1]
    end = _HEADER.size + count * _RECORD.size
    if len(frame) < end:
        raise MalformedMessage(f"token frame: {len(frame)} bytes cannot hold {count} records")
    rows = _RECORD.iter_unpack(memoryview(frame)[_HEADER.size : end])
    records: list[TokenRecord] = []
    for request_id, token_id, choice, num_top, logprob, flags in rows:
        top: Top = ()
        if num_top:
            top = _unpack_top(frame, end, num_top)
            end += 8 * num_top
        records.append((request_id, choice, token_id, logprob if flags & _HAS_LOGPROB else None, top))
    if end != len(frame):
        raise MalformedMessage(f"token frame: {len(frame)} bytes where {count} records end at {end}")
    return records


def _unpack_top(frame: bytes, offset: int, num_top: int) -> Top:
    if offset + 8 * num_top > len(frame):
        raise MalformedMessage(f"token frame: {len(frame)} bytes cannot hold {num_top} alternatives at {offset}")
    values = struct.unpack_from(f"<{num_top}i{num_top}f", frame, offset)
    return list(zip(values[:num_top], values[num_top:], strict=True))


def unpack_events(frame: bytes) -> list[SequenceEvent]:
    """The events of an EVENTS frame, in order. Raises MalformedMessage."""
    if frame[:1] != b"\x02":
        raise MalformedMessage(f"event frame: {len(frame)} bytes of kind {frame[:1].hex() or 'none'}, expected 02")
    return SEQUENCE_EVENTS.decode(memoryview(frame)[1:])
