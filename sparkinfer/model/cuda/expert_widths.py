"""Routed and shared experts of one width, which the kernels want: the narrower ones get columns of zeros.

Knows matrices of weights; never files. silu(0) * 0 = 0, so what is added adds nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.quant_format import QuantWeight
from sparkinfer.model.cuda import dequantize
from sparkinfer.model.cuda.tensor_reader import plain_weight

Matrices = tuple[QuantWeight, QuantWeight, QuantWeight]


def widened(matrices: Matrices, num_experts: int, width: int) -> Matrices:
    """gate, up [num_experts * ffn, hidden] and down [num_experts * hidden, ffn] with ffn = width.

    As they are where they are so wide; else as plain f16 numbers.
    """
    gate, up, down = matrices
    missing = width - down.num_cols
    if not missing:
        return matrices
    halves = (torch.unflatten(_plain(weight), 0, (num_experts, -1)) for weight in (gate, up))
    gate, up = (plain_weight(F.pad(half, (0, 0, 0, missing)).flatten(0, 1)) for half in halves)
    return gate, up, plain_weight(F.pad(_plain(down), (0, missing)))


def _plain(weight: QuantWeight) -> torch.Tensor:
    return dequantize.matrix(weight, torch.float16)
