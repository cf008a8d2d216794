"""Rows of f16 numbers for the tensor cores, back in the order of their columns."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import HalfRows


def columns(half: HalfRows, num_tokens: int) -> Tensor:
    """[num_tokens, num_cols] f32: what the numbers stand for."""
    pieces = half.values.float().reshape(-1, 4, 2, 8, 4, 8)  # groups, turns, halves of a block, tokens, lanes
    blocks = pieces.permute(3, 0, 1, 4, 2, 5) if half.is_wide else pieces.permute(3, 0, 4, 1, 2, 5)
    place = torch.arange(half.values.shape[1], device=half.values.device)
    order = place // 4 * 4 + place % 2 * 2 + place // 2 % 2
    return (blocks.reshape(8, -1)[:, order] * half.factors[:, None])[:num_tokens]
