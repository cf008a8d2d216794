"""Bit masks over the vocabulary on the device. Knows rows of logits; never sequences, or who made a mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkinfer.engine.mask_source import WORD_BITS


@dataclass(frozen=True, slots=True)
class MaskBatch:
    """Rows of a step that may choose among some tokens only, on the device."""

    rows: Tensor   # [num_masked] int64, rows of the step's logits
    words: Tensor  # [num_masked, ceil(vocab_size / 32)] int32, see mask_source.py


def allowed_tokens(words: Tensor, vocab_size: int) -> Tensor:
    """words [num_rows, num_words] int32 -> [num_rows, vocab_size] bool."""
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size].bool()


def apply_masks(logits: Tensor, masks: MaskBatch) -> None:
    """Make what is not allowed impossible, in place; logits [num_rows, vocab_size] f32."""
    allowed = allowed_tokens(masks.words, logits.shape[1])
    logits[masks.rows] = logits[masks.rows].masked_fill_(~allowed, float("-inf"))
