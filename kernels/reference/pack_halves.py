"""Rows as f16 with their norm factor, columns in the order of `many_rows`, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantActivation
from kernels.reference.quant_gemv import dequantize_rows

F16_MAX = 65504.0


def fragment_order(num_cols: int) -> Tensor:
    """[num_cols] int64: the column that lies at each position; 32 t + 16 half + 4 word + 2 i + j of a group of 128 at
    32 word + 16 half + 8 j + 2 t + i.

    >>> fragment_order(128)[:12].tolist()
    [0, 2, 32, 34, 64, 66, 96, 98, 1, 3, 33, 35]
    """
    columns = torch.arange(128).view(4, 2, 4, 2, 2)  # t, half, word, i, j
    order = columns.permute(2, 1, 4, 0, 3).flatten()
    return (torch.arange(0, num_cols, 128)[:, None] + order).flatten()


def pack_halves(x: QuantActivation, span: int, eps: float) -> Tensor:
    """[num_tokens, num_cols] f16; span: columns that share an RMS factor, 0 for none."""
    rows = dequantize_rows(x)
    if span:
        squares = x.square_sums.reshape(x.num_tokens, -1, span // 16).sum(-1)
        rows = rows * torch.rsqrt(squares / span + eps).repeat_interleave(span, dim=1)
    return rows.clamp(-F16_MAX, F16_MAX)[:, fragment_order(x.num_cols).to(rows.device)].half()
