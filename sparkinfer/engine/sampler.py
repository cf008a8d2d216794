"""Logits to token ids. Knows rows; never sequences, slots or text.

Order of the controls: a grammar's mask, penalties, logit_bias, temperature, top_k, top_p of what is left, min_p, then
the draw. The first output token obeys them all. Draws are Gumbel-max over the kept tokens with noise.py's numbers: one
pass over the logits, no dependence on the batch, and the same token whichever way the kept set was found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkinfer.engine.logprob_columns import LogprobColumns
from sparkinfer.engine.noise import gumbel
from sparkinfer.engine.penalties import PenaltyState
from sparkinfer.engine.sampling_batch import RandomBatch, SamplingBatch
from sparkinfer.engine.scheduler_output import Logprobs
from sparkinfer.engine.token_filter import keep
from sparkinfer.engine.token_mask import MaskBatch, apply_masks


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row of the logits."""

    token_ids: Tensor                    # [num_rows] int64, on the device; void where the row is not finite
    is_finite: Tensor                    # [num_rows] bool; False: the best logit is NaN or infinite
    logprob_columns: LogprobColumns | None

    @property
    def logprobs(self) -> list[Logprobs | None] | None:
        """One entry per row, None where nobody asks; waits for the device."""
        return None if self.logprob_columns is None else self.logprob_columns.rows()


class Sampler:
    """Vectorised over the rows of a step; owns the token counts that penalties need."""

    def __init__(
        self, vocab_size: int, device: torch.device, draw_rows: Callable[[Tensor, RandomBatch], Tensor] | None = None,
        mask_rows: Callable[[Tensor, MaskBatch], None] | None = None,
    ) -> None:
        """draw_rows, mask_rows: do what `draw` and `apply_masks` do, for the device; None: those."""
        self._penalty_state = PenaltyState(vocab_size, device)
        self._draw, self._apply_masks = draw_rows or draw, mask_rows or apply_masks

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Sampled:
        """Choose one token per row; steps must come in the order in which SamplingSlots built them.

        logits: [num_rows, vocab_size] f32, left as it is
        """
        raw = logits
        if batch.masks is not None or batch.penalties is not None or batch.logit_bias is not None:
            logits = self._adjusted(logits, batch)
        best, token_ids = logits.max(dim=-1)  # NaN counts as the largest
        is_finite = torch.isfinite(best)
        if batch.masks is not None:
            is_finite &= torch.isfinite(raw.amax(dim=-1))  # a mask hides no NaN
        for random in batch.random:
            token_ids[random.rows] = self._draw(logits[random.rows], random)
        if batch.penalties is not None:
            self._penalty_state.count(token_ids, batch.penalties, batch.void_rows)
        columns = None if batch.num_logprobs is None else LogprobColumns.of(raw, token_ids, batch.num_logprobs)
        return Sampled(token_ids, is_finite, columns)

    def _adjusted(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        logits = logits.clone()
        if batch.masks is not None:
            self._apply_masks(logits, batch.masks)
        if batch.penalties is not None:
            self._penalty_state.prepare(batch.penalties)
            self._penalty_state.apply(logits, batch.penalties)
        if batch.logit_bias is not None:
            bias = batch.logit_bias
            logits.index_put_((bias.rows, bias.token_ids), bias.values, accumulate=True)
        return logits


def draw(logits: Tensor, batch: RandomBatch) -> Tensor:
    """Draw a token per row from softmax(logits / temperature) restricted to the filters.

    logits:  [num_random, vocab_size] f32
    returns  [num_random] int64
    """
    logits = logits / batch.temperature
    low, high = batch.keys[:, :, None]
    if batch.filters is None:
        token_ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
        return (logits + gumbel(low, high, token_ids)).argmax(dim=-1)
    kept, token_ids = keep(logits, batch.filters)
    winners = (kept + gumbel(low, high, token_ids.to(torch.int32))).argmax(dim=-1, keepdim=True)
    return token_ids.gather(1, winners)[:, 0]


def gather_logprobs(logits: Tensor, token_ids: Tensor, num_logprobs: list[int | None]) -> list[Logprobs | None]:
    """LogprobColumns on the host at once; waits for the device."""
    return LogprobColumns.of(logits, token_ids, num_logprobs).rows()
