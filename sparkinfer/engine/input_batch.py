"""What the device is told of a step: positions, KV rows and tables, from what is kept per slot.

Knows slots and blocks; never models or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparkinfer.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from sparkinfer.engine.sequence import SlotId
from sparkinfer.model.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step, ready but for the tokens that earlier steps are still to sample."""

    forward_batch: ForwardBatch
    decode_rows: Tensor          # [num_decodes] int64, rows of input_ids that come from last_token_ids
    decode_slots: Tensor         # [num_decodes] int64


class InputBatch:
    """Persistent state by slot.

    `build` runs on the host ahead of the device and touches host state only; `feed` and `store` run with the step,
    in launch order, and touch last_token_ids only.

    block_tables:    [num_slots, max_blocks] int32 on the host, zero beyond what is allocated
    last_token_ids:  [num_slots] int64 on the device, sampled last in each slot
    """

    def __init__(self, num_slots: int, block_size: int, max_model_len: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device
        self._block_tables = np.zeros((num_slots, -(-max_model_len // block_size)), np.int32)
        self._last_token_ids = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def build(self, output: SchedulerOutput) -> StepInputs | None:
        """Inputs of a step, None where it computes nothing; steps must come in launch order."""
        self._update_tables(output)
        rows = [row for row in output.scheduled if row.num_tokens]
        if not rows:
            return None
        slots = np.array([row.slot for row in rows], np.int64)
        starts = np.array([row.start for row in rows], np.int64)
        query_lens = [row.num_tokens for row in rows]
        bounds = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(query_lens, out=bounds[1:])
        firsts = bounds[:-1]
        positions = np.arange(output.num_tokens) + np.repeat(starts - firsts, query_lens)
        context_lens = starts + query_lens
        num_blocks = -(-int(context_lens.max()) // self._block_size)
        block_tables = self._block_tables[slots, :num_blocks]
        owners = np.repeat(np.arange(len(rows)), query_lens)
        blocks = block_tables[owners, positions // self._block_size].astype(np.int64)
        is_decode = np.array([row.token_ids is None for row in rows], bool)
        samples = np.array([row.samples for row in rows], bool)
        forward_batch = ForwardBatch(
            input_ids=self._tensor(self._input_ids(rows, firsts, output.num_tokens)),
            positions=self._tensor(positions),
            cu_seqlens_q=self._tensor(bounds.astype(np.int32)),
            context_lens=self._tensor(context_lens.astype(np.int32)),
            slot_mapping=self._tensor(blocks * self._block_size + positions % self._block_size),
            block_tables=self._tensor(block_tables),
            state_slots=self._tensor(slots),
            logits_indices=self._tensor(bounds[1:][samples] - 1),
            query_lens=query_lens,
            context_lens_cpu=context_lens.tolist(),
        )
        return StepInputs(
            forward_batch,
            decode_rows=self._tensor(firsts[is_decode]),
            decode_slots=self._tensor(slots[is_decode]),
        )

    def feed(self, inputs: StepInputs) -> None:
        """Fill in the tokens of decode rows."""
        inputs.forward_batch.input_ids[inputs.decode_rows] = self._last_token_ids[inputs.decode_slots]

    def store(self, slots: Sequence[SlotId], token_ids: Tensor) -> None:
        """Keep what the step sampled.

        token_ids: [len(slots)] int64
        """
        self._last_token_ids[torch.tensor(slots, device=self._device)] = token_ids

    def _update_tables(self, output: SchedulerOutput) -> None:
        for row in output.scheduled:
            if row.admitted is not None:
                self._block_tables[row.slot] = 0
            if row.new_blocks:
                end = row.first_new_block + len(row.new_blocks)
                self._block_tables[row.slot, row.first_new_block : end] = row.new_blocks

    def _input_ids(
        self, rows: Sequence[ScheduledSequence], firsts: npt.NDArray[np.int64], num_tokens: int
    ) -> npt.NDArray[np.int64]:
        input_ids = np.zeros(num_tokens, np.int64)
        for first, row in zip(firsts, rows):
            if row.token_ids is not None:
                input_ids[first : first + row.num_tokens] = row.token_ids
        return input_ids

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
