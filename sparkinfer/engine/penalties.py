"""Which tokens a sequence has seen, for the penalties. Knows rows of counts; never sequences or slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparkinfer.engine.upload import to_device


@dataclass(frozen=True, slots=True)
class PenaltyReset:
    """A row of the state begins to serve a sequence."""

    state_row: int
    prompt_token_ids: list[int]
    output_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PenaltyBatch:
    """The rows of one step that have penalties, on the device."""

    resets: list[PenaltyReset]   # of rows that sample for the first time
    num_state_rows: int          # rows the state must have
    rows: Tensor                 # [num_penalised] int64, rows of the step's logits
    state_rows: Tensor           # [num_penalised] int64, all different
    presence: Tensor             # [num_penalised, 1] f32
    frequency: Tensor            # [num_penalised, 1] f32
    repetition: Tensor           # [num_penalised, 1] f32
    has_repetition: bool         # some row's repetition is not 1


class PenaltyState:
    """Counts on the device, a row for each sequence with penalties; grows to the most that ever ran at once.

    counts:     [num_rows, vocab_size] int32, how often each token was generated
    in_prompt:  [num_rows, vocab_size] bool
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)

    def prepare(self, batch: PenaltyBatch) -> None:
        """Make room, and give rows to new sequences, with the tokens they have so far."""
        if batch.num_state_rows > len(self._counts):
            self._counts = _grown(self._counts, batch.num_state_rows)
            self._in_prompt = _grown(self._in_prompt, batch.num_state_rows)
        device = self._counts.device
        for reset in batch.resets:
            output = to_device(np.array(reset.output_token_ids, np.int64), device)
            counts = self._counts[reset.state_row].zero_()
            counts.index_add_(0, output, torch.ones_like(output, dtype=counts.dtype))
            prompt = to_device(np.array(reset.prompt_token_ids, np.int64), device)
            self._in_prompt[reset.state_row].zero_().index_fill_(0, prompt, True)

    def apply(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """Penalise batch.rows of `logits` in place.

        logits: [num_rows, vocab_size] f32
        Repetition divides positive logits of seen tokens and multiplies negative ones (arXiv:1909.05858); frequency
        subtracts per occurrence and presence once, both for generated tokens only.
        """
        counts = self._counts[batch.state_rows]
        generated = counts > 0
        chosen = logits[batch.rows]
        if batch.has_repetition:
            repeated = torch.where(chosen > 0, chosen / batch.repetition, chosen * batch.repetition)
            chosen = torch.where(generated | self._in_prompt[batch.state_rows], repeated, chosen)
        logits[batch.rows] = chosen.sub_(counts * batch.frequency).sub_(generated * batch.presence)

    def count(self, token_ids: Tensor, batch: PenaltyBatch, void_rows: tuple[int, ...] = ()) -> None:
        """Take note of what the step sampled.

        token_ids: [num_rows] int64, of all rows of the step
        void_rows: rows of the step whose token is thrown away
        """
        increments = torch.ones_like(token_ids, dtype=torch.int32)
        if void_rows:
            increments.index_fill_(0, to_device(np.array(void_rows, np.int64), increments.device), 0)
        self._counts[batch.state_rows, token_ids[batch.rows]] += increments[batch.rows]


def _grown(tensor: Tensor, num_rows: int) -> Tensor:
    grown = tensor.new_zeros(max(num_rows, 2 * len(tensor)), tensor.shape[1])
    grown[: len(tensor)] = tensor
    return grown
