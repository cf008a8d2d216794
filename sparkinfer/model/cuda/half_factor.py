"""How much the middle of a feed-forward part must shrink to be kept as f16, whatever the layer's input is.

With x = norm * y / rms(y), |y / rms(y)| <= sqrt(n), and |silu(z)| <= |z|: |silu(g x) u x| <= n |g norm| |u norm| for a
row g of gate and the row u of up beside it. SmolLM2-135M needs 1 to 1/4; random weights of a 27B model 2^-8. Smaller
numbers lose nothing to that: f16 has 30 powers of two. Knows matrices of weights; never files.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.quant_format import QuantWeight
from kernels.repack import select_rows
from sparkinfer.model.cuda import dequantize

LARGEST = 32768.0  # half of what f16 holds: the bound is computed of bf16 numbers, products are rounded
ROWS = 16384  # dequantised at a time


def half_factor(gate: QuantWeight, up: QuantWeight, norm_weight: Tensor) -> float:
    """Power of two, at most 1, by which silu(gate x) * up x is within f16.

    gate, up:     [num_rows, n]; rows side by side are multiplied with each other
    norm_weight:  [n] f32, of the RMS norm that makes x
    """
    squares = norm_weight.square().to(torch.bfloat16)
    largest = torch.zeros((), device=squares.device)
    for start in range(0, gate.num_rows, ROWS):
        some = slice(start, start + ROWS)
        lengths = [_matrix(weight, some).square() @ squares for weight in (gate, up)]
        largest = torch.maximum(largest, (lengths[0].float() * lengths[1].float()).max())
    bound = norm_weight.shape[0] * math.sqrt(float(largest))
    return 2.0 ** -max(0, math.ceil(math.log2(max(bound, LARGEST) / LARGEST)))


def _matrix(weight: QuantWeight, rows: slice) -> Tensor:
    return dequantize.matrix(select_rows(weight, rows), torch.bfloat16)
