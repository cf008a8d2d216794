"""kernels/fp8_products.py in plain torch: e4m3 numbers as f32, scales given back to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.quant_format import QuantWeight
from kernels.reference.quant_weight import dequantize

BLOCK = 128
LARGEST = 448.0


def rounded(x: Tensor, block_rows: int) -> Tensor:
    """Numbers nearest to x that e4m3 has, scaled by the largest of `block_rows` rows and 128 columns: as x, f32."""
    num_rows, num_cols = x.shape
    padded = F.pad(x.float(), (0, -num_cols % BLOCK, 0, -num_rows % block_rows))
    blocks = padded.unflatten(0, (-1, block_rows)).unflatten(2, (-1, BLOCK))
    largest = blocks.abs().amax((1, 3), keepdim=True)
    found = (blocks * (LARGEST / largest.clamp_min(1e-30))).to(torch.float8_e4m3fn).float() * (largest / LARGEST)
    return found.flatten(2).flatten(0, 1)[:num_rows, :num_cols]


def fp8_products(x: Tensor, weights: Sequence[QuantWeight]) -> Tensor:
    """The function's arguments and result; sums in f32."""
    matrix = torch.cat([rounded(dequantize(weight), BLOCK) for weight in weights])
    return rounded(x, 1) @ matrix.T
