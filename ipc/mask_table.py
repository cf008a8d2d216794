"""Grammar masks on their way from the text workers to the sampler: one row per constrained sequence.

Owns the layout; never knows a grammar or a token. Which row belongs to which sequence is agreed elsewhere.

    offset  bytes                 field                  writer
         0      8                 magic "SPKMASK1"       supervisor
         8      8                 version                supervisor
        16      8                 num_rows               supervisor
        24      8                 vocab_size             supervisor
        64      stride x num_rows rows

    row (stride = 64 + 4 x num_words rounded up to 64)   writer: the text worker that owns the sequence
         0      8                 position, u64          2^64 - 1: no mask here
         8      4                 number of forced tokens, i32, 0..13
        12      4 x 13            forced tokens, i32     what must come from `position` on; the mask allows the first
        64      4 x num_words     mask, i32              bit i of word w: token 32 w + i is allowed

num_words = ceil(vocab_size / 32). Reader: the gpu scheduler.
Order: position := none, mask, position; the reader looks at the position first and reads the mask only if it is the
one it expects. The writer learns that position p was consumed from the token sampled there, and only then writes
p + 1, so that a row never changes under the reader.

NOTE: as in ipc/ring.py, the order of stores is x86-64's; aarch64 would need barriers around the mask.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ipc.segment import Segment

_MAGIC: Final = int.from_bytes(b"SPKMASK1", "little")
_VERSION: Final = 2
_HEADER_BYTES: Final = 64
_LINE_BYTES: Final = 64
_NO_POSITION: Final = 2**64 - 1


MAX_CHOICES: Final = 8
MAX_WAITING: Final = 1024  # choices under a grammar that the scheduler can order; more stand in line before it
MAX_FORCED: Final = 13  # tokens; what the line of the position has room for


def rows_per_text_worker(max_num_seqs: int) -> int:
    """For every sequence that can run and many that wait to; worker i has the i-th part of the rows."""
    return max(max_num_seqs, MAX_CHOICES) + MAX_WAITING


class MaskTable:
    """All rows. The supervisor creates it; text workers write their rows, the gpu scheduler reads them."""

    def __init__(self, segment: Segment, num_rows: int, vocab_size: int) -> None:
        self.segment = segment
        self.num_rows = num_rows
        self.num_words = -(-vocab_size // 32)
        stride = _row_stride(vocab_size)
        body = np.frombuffer(segment.buffer, np.uint8, num_rows * stride, _HEADER_BYTES).reshape(num_rows, stride)
        self._positions: npt.NDArray[np.uint64] = body[:, :8].view(np.uint64)[:, 0]
        self._forced: npt.NDArray[np.int32] = body[:, 8:_LINE_BYTES].view(np.int32)
        self._rows: npt.NDArray[np.int32] = body[:, _LINE_BYTES : _LINE_BYTES + 4 * self.num_words].view(np.int32)

    @classmethod
    def create(cls, num_rows: int, vocab_size: int) -> MaskTable:
        """A table without any mask (the supervisor's business)."""
        segment = Segment.create("mask_table", _table_bytes(num_rows, vocab_size))
        with memoryview(segment.buffer) as view, view[:_HEADER_BYTES].cast("Q") as words:
            words[1], words[2], words[3] = _VERSION, num_rows, vocab_size
            words[0] = _MAGIC
        table = cls(segment, num_rows, vocab_size)
        for row in range(num_rows):
            table.clear(row)
        return table

    @classmethod
    def attach(cls, fd: int) -> MaskTable:
        """The table behind an inherited descriptor. Raises ValueError when it is no mask table."""
        segment = Segment.attach(fd, os.fstat(fd).st_size)
        with memoryview(segment.buffer) as view, view[:_HEADER_BYTES].cast("Q") as words:
            magic, version, num_rows, vocab_size = words[:4].tolist()
        if (magic, version) != (_MAGIC, _VERSION) or _table_bytes(num_rows, vocab_size) != segment.size:
            raise ValueError(f"segment {segment.name!r} (fd {fd}) is not a mask table of version {_VERSION}")
        return cls(segment, num_rows, vocab_size)

    @property
    def fd(self) -> int:
        """For `Popen(pass_fds=...)`."""
        return self.segment.fd

    def row(self, row: int) -> npt.NDArray[np.int32]:
        """The mask of one row, a view [num_words]; gone before `close`."""
        mask: npt.NDArray[np.int32] = self._rows[row]
        return mask

    def publish(self, row: int, position: int, mask: npt.NDArray[np.int32]) -> None:
        """Text worker: the tokens allowed at `position` of the row's sequence.

        mask:  [num_words] int32
        """
        self.clear(row)
        self._rows[row] = mask
        self.force(row, ())
        self.mark_ready(row, position)

    def force(self, row: int, token_ids: Sequence[int]) -> None:
        """Text worker, between `clear` and `mark_ready`: only these may come, MAX_FORCED at most; none: a choice.

        With tokens, the mask becomes that of the first.
        """
        forced = self._forced[row]
        forced[0] = len(token_ids)
        if token_ids:
            forced[1 : 1 + len(token_ids)] = token_ids
            word, bit = divmod(token_ids[0], 32)
            self._rows[row] = 0
            self._rows[row, word] = np.uint32(1 << bit).astype(np.int32)

    def forced(self, row: int) -> list[int]:
        """Gpu scheduler, for a row that is ready."""
        forced = self._forced[row]
        token_ids: list[int] = forced[1 : 1 + int(forced[0])].tolist()
        return token_ids

    def mark_ready(self, row: int, position: int) -> None:
        """Text worker: what was written into `row(row)` since `clear` is the mask of `position`."""
        self._positions[row] = position

    def clear(self, row: int) -> None:
        """Text worker: no mask here; before its words change, and before a row is given to another sequence."""
        self._positions[row] = _NO_POSITION

    def ready(self, row: int, position: int) -> bool:
        """Gpu scheduler: True when the row holds the mask of `position`."""
        return bool(self._positions[row] == position)

    def close(self) -> None:
        """Let go of the segment; rows handed out must be gone (BufferError otherwise). Closing twice is harmless."""
        self._positions = np.empty(0, np.uint64)
        self._rows = np.empty((0, self.num_words), np.int32)
        self._forced = np.empty((0, 14), np.int32)
        self.segment.close()


def _row_stride(vocab_size: int) -> int:
    mask_bytes = 4 * -(-vocab_size // 32)
    return _LINE_BYTES + -(-mask_bytes // _LINE_BYTES) * _LINE_BYTES


def _table_bytes(num_rows: int, vocab_size: int) -> int:
    return _HEADER_BYTES + num_rows * _row_stride(vocab_size)
