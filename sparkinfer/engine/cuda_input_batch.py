"""Host side of a CUDA step: KV rows and block tables by slot, and what of them the device is told. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.spans import Spans, pack_spans
from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from sparkinfer.model.cuda.prefill import PrefillBatch

WARM_UP_TOKENS = 80  # more than the delta rule takes at once


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """A PrefillBatch on the host: numbers [3, num_tokens] token, position, KV row of each; the tables of Spans."""

    numbers: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int32]
    chunks: npt.NDArray[np.int32]
    tiles: npt.NDArray[np.int32]


class CudaInputBatch:
    """Block tables by slot, twice: on the host for KV rows, on the device for the kernels.

    Used by the thread that runs steps, in launch order; every upload goes through pinned memory on the current stream.

    block_tables: [num_slots + 1, max_blocks] int32 on the device; the last row, of the dummy slot, names block
                  num_blocks, which no sequence gets
    """

    def __init__(
        self, num_slots: int, num_blocks: int, block_size: int, max_model_len: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        self._device = device
        shape = (num_slots + 1, -(-max_model_len // block_size))
        self.max_model_len = shape[1] * block_size
        self._dummy_slot = num_slots
        self._tables = np.zeros(shape, np.int32)
        self._prompt_ends = [0] * num_slots
        self.block_tables = torch.zeros(shape, dtype=torch.int32, device=device)
        self.block_tables[-1] = num_blocks
        self._tables[-1] = num_blocks

    def update(self, output: SchedulerOutput) -> None:
        """Take over the blocks that a step adds to its sequences' tables; entries beyond a table's end are stale."""
        places: list[int] = []
        blocks: list[int] = []
        width = self._tables.shape[1]
        for row in output.scheduled:
            if row.admitted is not None:
                self._prompt_ends[row.slot] = len(row.admitted.prompt_token_ids)
            if row.new_blocks:
                first = row.slot * width + row.first_new_block
                places.extend(range(first, first + len(row.new_blocks)))
                blocks.extend(row.new_blocks)
        if places:
            changes = np.array([places, blocks], np.int64)
            self._tables.reshape(-1)[changes[0]] = changes[1]
            device_changes = self.upload(changes)
            self.block_tables.view(-1).index_copy_(0, device_changes[0], device_changes[1].int())

    def is_of_prompt(self, row: ScheduledSequence) -> bool:
        """Whether a row's tokens are the client's, and none of an answer, known or not."""
        return row.token_ids is not None and row.start < self._prompt_ends[row.slot]

    def decode_rows(self, rows: Sequence[ScheduledSequence], offset: int = 0) -> npt.NDArray[np.int64]:
        """[3, num_rows] slot, position, context length with the new token, which is token start + offset."""
        positions = [row.start + offset for row in rows]
        return np.array([[row.slot for row in rows], positions, [start + 1 for start in positions]], np.int64)

    def prefill_batch(self, rows: Sequence[ScheduledSequence]) -> PrefillBatch:
        """The chunks of a step's prompts; every row has token_ids."""
        return self._uploaded(self.pack(rows))

    def dummy_chunks(self) -> list[tuple[int, int]]:
        """(start, num_tokens) of three chunks that the dummy slot has room for: a first one, a next one, one token."""
        num_tokens = min(WARM_UP_TOKENS, self.max_model_len // 3)
        return [(0, num_tokens), (num_tokens, num_tokens), (2 * num_tokens, 1)]

    def dummy_batch(self, start: int, num_tokens: int) -> PrefillBatch:
        """A chunk of token 0 on the dummy slot."""
        return self._uploaded(self._pack([(self._dummy_slot, start, [0] * num_tokens)], num_tokens, 1))

    def pack(self, rows: Sequence[ScheduledSequence], size: int = 0, max_seqs: int = 0) -> PackedChunks:
        """The chunks of a step's prompts on the host, made `size` tokens by some on the dummy slot.

        size, max_seqs: 0: no more than there are; max_seqs: sequences that the tables have room for
        """
        parts: list[tuple[int, int, list[int]]] = [(row.slot, row.start, row.token_ids or []) for row in rows]
        num_tokens = sum(len(token_ids) for _, _, token_ids in parts)
        if num_tokens < size:
            parts.append((self._dummy_slot, 0, [0] * (size - num_tokens)))
        return self._pack(parts, max(size, num_tokens), max_seqs or len(parts))

    def _pack(self, parts: Sequence[tuple[int, int, list[int]]], num_tokens: int, max_seqs: int) -> PackedChunks:
        """parts: (slot, start, token_ids) of each chunk."""
        input_ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        for slot, start, token_ids in parts:
            input_ids += token_ids
            slots += [slot] * len(token_ids)
            positions += range(start, start + len(token_ids))
        kv_rows = self._kv_rows(np.array(slots, np.int64), np.array(positions, np.int64))
        numbers = np.stack((np.array(input_ids, np.int64), np.array(positions, np.int64), kv_rows))
        counts = [(slot, start, len(token_ids)) for slot, start, token_ids in parts]
        return PackedChunks(numbers, *pack_spans(counts, max_seqs, num_tokens))

    def _uploaded(self, packed: PackedChunks) -> PrefillBatch:
        numbers = self.upload(packed.numbers)
        sequences, chunks, tiles = map(self.upload, (packed.sequences, packed.chunks, packed.tiles))
        return PrefillBatch(numbers[0], numbers[1], numbers[2], Spans(sequences, chunks, tiles, self.block_tables))

    def upload(self, array: npt.NDArray[np.signedinteger]) -> Tensor:
        """The array on the device, without waiting for anything."""
        source = torch.from_numpy(array)
        if self._device.type == "cpu":
            return source.clone()
        return source.pin_memory().to(self._device, non_blocking=True)

    def _kv_rows(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        blocks = self._tables[slots, positions // self._block_size].astype(np.int64)
        return blocks * self._block_size + positions % self._block_size
