"""A step as the kernels see it: a record of addresses and counts, and who attends to what. Knows rows; no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu import program as words
from kernels.cpu.attention import MAX_QUERIES, SPAN, STATE, scratch_bytes
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cpu.memory import aligned_bytes
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.rope import Rope

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
ARENA_BYTES = 1 << 16
FINISHED = -1  # an entry of a work list whose outputs need no joining


class StepRecord:
    """The record of one pass over at most `max_rows` rows; what it points to lives until the next `describe`."""

    def __init__(self, hparams: HParams, ropes: Mapping[str, Rope], num_threads: int) -> None:
        self._hparams, self._ropes = hparams, ropes
        self._inv_freq = {kind: rope.inv_freq.numpy().astype(np.float64) for kind, rope in ropes.items()}
        self._words = aligned_bytes(8 * words.STEP_WORDS).view(np.int64)
        self._address = self._words.ctypes.data
        self._arena = aligned_bytes(ARENA_BYTES)
        self._arena_address, self._arena_used = self._arena.ctypes.data, 0
        self._kept: list[npt.NDArray[Any]] = []
        needed = max(scratch_bytes(hparams.head_dim), 8192)
        self._scratch = aligned_bytes(needed * num_threads)
        self._partials = aligned_bytes(0)
        self._words[[words.ONE, words.SCRATCH, words.SCRATCH_BYTES]] = 1, self._scratch.ctypes.data, needed

    @property
    def address(self) -> int:
        return self._address

    def describe(self, batch: ForwardBatch, first: int, end: int, block_size: int, logits: int) -> None:
        """Rows [first, end) of a step.

        logits: address of the first row of logits that the pass writes; 0: they are not computed
        """
        self._kept, self._arena_used = [], 0
        spans = _spans(batch, first, end)
        positions, tables = batch.positions.numpy()[first:end], batch.block_tables.numpy()
        logit_rows = batch.logits_indices.numpy()
        logit_rows = logit_rows[(logit_rows >= first) & (logit_rows < end)] - first
        num_rows, top_k = end - first, self._hparams.num_experts_used
        w = self._words
        w[words.NUM_ROWS], w[words.NUM_SPANS], w[words.NUM_LOGITS] = num_rows, len(spans), len(logit_rows)
        w[words.NUM_PAIRS] = num_rows * top_k
        w[words.NUM_ACTIVE] = min(num_rows * top_k, self._hparams.num_experts)
        w[words.POSITIONS], w[words.SLOTS] = self._keep(positions), self._keep(batch.slot_mapping.numpy()[first:end])
        w[words.TABLES], w[words.TABLE_BYTES] = self._keep(tables), tables.shape[1] * tables.itemsize
        w[words.BLOCK_SIZE], w[words.LOGITS], w[words.LOGIT_ROWS] = block_size, logits, self._keep(logit_rows)
        slots = batch.state_slots.numpy()
        w[words.SPANS] = self._keep(np.array([(row, count, slots[seq]) for row, count, seq in spans], np.int64))
        self._angles(positions)
        self._work(positions, spans)

    def describe_head(self, num_rows: int, logits: int) -> None:
        """Logits of the first rows of the residual stream, and nothing else."""
        w, rows = self._words, np.arange(num_rows)
        self._kept, self._arena_used = [], 0
        w[words.NUM_ROWS], w[words.NUM_LOGITS], w[words.LOGITS] = num_rows, num_rows, logits
        w[words.LOGIT_ROWS] = self._keep(rows)

    def _angles(self, positions: Ints) -> None:
        for kind, at in (("attention", words.COS), ("sliding_attention", words.SLIDING_COS)):
            if kind in self._ropes:
                magnitude = self._ropes[kind].magnitude
                angles = positions[:, None].astype(np.float64) * self._inv_freq[kind]
                self._words[at] = self._keep((np.cos(angles) * magnitude).astype(np.float32))
                self._words[at + 1] = self._keep((np.sin(angles) * magnitude).astype(np.float32))

    def _work(self, positions: Ints, spans: list[tuple[int, int, int]]) -> None:
        """Work lists of both kinds of attention; only one kind's parts are alive at a time."""
        num_parts = 0
        for kind, count_at, work_at, parts_at in (
            ("attention", words.NUM_WORK, words.WORK, words.PARTS),
            ("sliding_attention", words.NUM_SLIDING_WORK, words.SLIDING_WORK, words.SLIDING_PARTS),
        ):
            if kind not in self._hparams.layer_types:
                continue
            window = self._hparams.sliding_window if kind == "sliding_attention" else 0
            entries, parts = self._entries(positions, spans, window)
            num_parts = max(num_parts, int(parts.sum(0)[1]))
            self._words[count_at] = len(entries)
            self._words[work_at] = self._keep(np.array(entries, np.int64))
            self._words[parts_at] = self._keep(parts)
        state_bytes = STATE + 4 * self._hparams.head_dim
        needed = num_parts * self._hparams.num_q_heads * state_bytes
        if len(self._partials) < needed:
            self._partials = aligned_bytes(2 * needed)
            self._words[words.PARTIALS] = self._partials.ctypes.data

    def _entries(
        self, positions: Ints, spans: list[tuple[int, int, int]], window: int
    ) -> tuple[list[tuple[int, int, int, int, int, int]], Ints]:
        """[first row, rows, sequence, first key, end key, part], and [first part, number of parts] of every row.

        A single row with many keys is cut into spans; several rows of a sequence share tiles of keys instead.
        """
        rows_at_once = max(1, MAX_QUERIES // (self._hparams.num_q_heads // self._hparams.num_kv_heads))
        entries, parts = [], np.zeros((len(positions), 2), np.int64)
        num_parts = 0
        for first_row, count, seq in spans:
            for row in range(first_row, first_row + count, rows_at_once):
                rows = min(rows_at_once, first_row + count - row)
                end = int(positions[row + rows - 1]) + 1
                start = max(int(positions[row]) + 1 - window, 0) if window else 0
                first_span, last_span = start // SPAN, (end - 1) // SPAN
                if count > 1 or first_span == last_span:
                    entries.append((row, rows, seq, start, end, FINISHED))
                    continue
                parts[row] = num_parts, last_span - first_span + 1
                for span in range(first_span, last_span + 1):
                    bounds = max(start, span * SPAN), min(end, (span + 1) * SPAN)
                    entries.append((row, rows, seq, *bounds, num_parts))
                    num_parts += 1
        return entries, parts

    def _keep(self, array: npt.NDArray[Any]) -> int:
        """Address of the same values; a decode step's fit the arena, whose address needs no asking."""
        start, size = self._arena_used, array.nbytes
        if start + size > ARENA_BYTES:
            array = np.ascontiguousarray(array)
            self._kept.append(array)
            return array.ctypes.data
        self._arena[start : start + size].view(array.dtype)[:] = array.reshape(-1)
        self._arena_used = start + -(-size // 64) * 64
        return self._arena_address + start


def _spans(batch: ForwardBatch, first: int, end: int) -> list[tuple[int, int, int]]:
    """[first row within the pass, rows, sequence] of the sequences with rows in [first, end)."""
    spans, row = [], 0
    for seq, query_len in enumerate(batch.query_lens):
        start, stop = max(row, first), min(row + query_len, end)
        if start < stop:
            spans.append((start - first, stop - start, seq))
        row += query_len
    return spans
