"""A step as the kernels see it: a record of addresses and counts, and who attends to what. Knows rows; no weights."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from kernels.cpu import program as words
from kernels.cpu.attention import MAX_QUERIES, SPAN, STATE, scratch_bytes
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cpu.angle_table import AngleTable
from sparkinfer.model.cpu.memory import aligned_bytes
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.rope import Rope

Span = tuple[int, int, int, int]  # first row within the pass, rows, sequence, position of the first
WORDS_OF = {  # number of entries, their list, the parts
    "attention": (words.NUM_WORK, words.WORK, words.PARTS),
    "sliding_attention": (words.NUM_SLIDING_WORK, words.SLIDING_WORK, words.SLIDING_PARTS),
}
FINISHED = -1  # an entry of a work list whose outputs need no joining


class StepRecord:
    """The record of one pass; what it points to lives until the next `describe`, what is the batch's with the batch.

    Few operations, and on numbers: between two steps' weights the caches hold nothing of this.
    """

    def __init__(self, hparams: HParams, ropes: Mapping[str, Rope], num_threads: int) -> None:
        self._hparams = hparams
        self._angles = [
            (at, AngleTable(ropes[kind], hparams.max_position))
            for kind, at in (("attention", words.COS), ("sliding_attention", words.SLIDING_COS)) if kind in ropes
        ]
        self._has_states = "gated_delta_net" in hparams.layer_types
        self._attention = [
            (*words_of, hparams.sliding_window if kind == "sliding_attention" else 0)
            for kind, words_of in WORDS_OF.items() if kind in hparams.layer_types
        ]
        self._rows_at_once = max(1, MAX_QUERIES // (hparams.num_q_heads // hparams.num_kv_heads))
        record = aligned_bytes(8 * words.STEP_WORDS)
        self.address = record.ctypes.data
        self._words = memoryview(record.data).cast("q")
        self._kept: list[Any] = []
        needed = max(scratch_bytes(hparams.head_dim), 8192)
        self._scratch = aligned_bytes(needed * num_threads)
        self._partials = aligned_bytes(0)
        self._words[words.ONE], self._words[words.SCRATCH_BYTES] = 1, needed
        self._words[words.SCRATCH] = self._scratch.ctypes.data

    def describe(
        self, batch: ForwardBatch, rows: range, block_size: int, logits: int = 0, logit_rows: range = range(0)
    ) -> None:
        """A pass over some rows of a step.

        logits, logit_rows: address of the first row of logits that the pass writes, and the entries of logits_indices
            that they are of; none: they are not computed
        """
        self._kept = []
        first, num_rows = rows.start, len(rows)
        spans, w = _spans(batch, first, rows.stop), self._words
        num_pairs, tables = num_rows * self._hparams.num_experts_used, batch.block_tables
        w[words.NUM_ROWS], w[words.NUM_LOGITS], w[words.LOGITS] = num_rows, len(logit_rows), logits
        w[words.NUM_PAIRS], w[words.NUM_ACTIVE] = num_pairs, min(num_pairs, self._hparams.num_experts)
        w[words.BLOCK_SIZE], w[words.TABLES] = block_size, tables.data_ptr()
        w[words.TABLE_BYTES] = tables.stride(0) * tables.element_size()
        w[words.TOKENS] = batch.input_ids.data_ptr() + 8 * first
        w[words.POSITIONS] = batch.positions.data_ptr() + 8 * first
        w[words.SLOTS] = batch.slot_mapping.data_ptr() + 8 * first
        if first and logit_rows:
            chosen = batch.logits_indices[logit_rows.start : logit_rows.stop].tolist()
            w[words.LOGIT_ROWS] = self._keep([row - first for row in chosen])
        else:
            w[words.LOGIT_ROWS] = batch.logits_indices.data_ptr()
        if self._has_states:
            slots = batch.state_slots.tolist()
            w[words.NUM_SPANS] = len(spans)
            w[words.SPANS] = self._keep([value for row, count, seq, _ in spans for value in (row, count, slots[seq])])
        self._reach(max(batch.context_lens_cpu))
        self._work(num_rows, spans)

    def describe_head(self, num_rows: int, logits: int) -> None:
        """Logits of the first rows of the residual stream, and nothing else."""
        w, self._kept = self._words, []
        w[words.NUM_ROWS], w[words.NUM_LOGITS], w[words.LOGITS] = num_rows, num_rows, logits
        w[words.LOGIT_ROWS] = self._keep(list(range(num_rows)))

    def _reach(self, num_positions: int) -> None:
        for at, table in self._angles:
            if num_positions > table.num_positions:
                table.reach(num_positions)
                self._words[at], self._words[at + 1] = table.addresses

    def _work(self, num_rows: int, spans: list[Span]) -> None:
        """Work lists of both kinds of attention; only one kind's parts are alive at a time."""
        num_parts, w = 0, self._words
        for count_at, work_at, parts_at, window in self._attention:
            entries, parts, count = self._entries(num_rows, spans, window)
            num_parts = max(num_parts, count)
            w[count_at], w[work_at], w[parts_at] = len(entries) // 6, self._keep(entries), self._keep(parts)
        needed = num_parts * self._hparams.num_q_heads * (STATE + 4 * self._hparams.head_dim)
        if len(self._partials) < needed:
            self._partials = aligned_bytes(2 * needed)
            w[words.PARTIALS] = self._partials.ctypes.data

    def _entries(self, num_rows: int, spans: list[Span], window: int) -> tuple[list[int], list[int], int]:
        """[first row, rows, sequence, first key, end key, part] laid end to end; [first part, number of parts] of every
        row likewise; the number of parts.

        A single row with many keys is cut into spans; several rows of a sequence share tiles of keys instead.
        """
        entries: list[int] = []
        parts, num_parts = [0] * (2 * num_rows), 0
        for first_row, count, seq, position in spans:
            for offset in range(0, count, self._rows_at_once):
                row, rows = first_row + offset, min(self._rows_at_once, count - offset)
                end = position + offset + rows
                start = max(position + offset + 1 - window, 0) if window else 0
                first_span, last_span = start // SPAN, (end - 1) // SPAN
                if count > 1 or first_span == last_span:
                    entries += row, rows, seq, start, end, FINISHED
                    continue
                parts[2 * row], parts[2 * row + 1] = num_parts, last_span - first_span + 1
                for span in range(first_span, last_span + 1):
                    entries += row, rows, seq, max(start, span * SPAN), min(end, (span + 1) * SPAN), num_parts
                    num_parts += 1
        return entries, parts, num_parts

    def _keep(self, numbers: list[int]) -> int:
        """Address of the numbers as int64."""
        kept = array("q", numbers)
        self._kept.append(kept)
        return kept.buffer_info()[0]


def _spans(batch: ForwardBatch, first: int, end: int) -> list[Span]:
    """The sequences with rows in [first, end)."""
    spans, row = [], 0
    for seq, query_len in enumerate(batch.query_lens):
        start, stop = max(row, first), min(row + query_len, end)
        if start < stop:
            spans.append((start - first, stop - start, seq, batch.context_lens_cpu[seq] - query_len + start - row))
        row += query_len
    return spans
