"""Sampler's draw and masks as kernels: nothing waits for the device. Knows rows; never sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.draw_tokens import DrawFilters, draw_tokens
from kernels.mask_logits import mask_logits
from sparkinfer.engine.mask_source import WORD_BITS
from sparkinfer.engine.sampling_batch import RandomBatch
from sparkinfer.engine.token_mask import MaskBatch


def draw(logits: Tensor, batch: RandomBatch) -> Tensor:
    """As sparkinfer.engine.sampler.draw, its tokens but for the last bits of exp and log."""
    filters = None
    if batch.filters is not None:
        wanted = batch.filters
        filters = DrawFilters(
            wanted.top_k, wanted.top_p, wanted.min_p.log(), has_top_k=wanted.has_top_k, has_top_p=wanted.has_top_p
        )
    ids: Tensor = draw_tokens(logits, batch.temperature[:, 0], batch.keys, filters)
    return ids


def mask_rows(logits: Tensor, masks: MaskBatch) -> None:
    """As sparkinfer.engine.token_mask.apply_masks."""
    mask_logits(logits, masks.rows, masks.words)


def compile_draws(vocab_size: int, device: torch.device) -> None:
    """Run each kernel once, so that no request waits for its compilation."""
    ones, logits = torch.ones(1, device=device), torch.zeros(1, vocab_size, device=device)
    keys = torch.zeros(2, 1, dtype=torch.int32, device=device)
    for filters in (None, DrawFilters(ones.long(), 0.5 * ones, -ones, has_top_k=True, has_top_p=True)):
        draw_tokens(logits, ones, keys, filters)
    words = torch.zeros(1, -(-vocab_size // WORD_BITS), dtype=torch.int32, device=device)
    mask_logits(logits, torch.zeros(1, dtype=torch.int64, device=device), words)
