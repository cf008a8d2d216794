"""Planes -> a plain matrix for the length of one product, and embeddings. Knows formats; never layers."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dequantize import dequantize
from kernels.quant_embedding import quant_embedding
from kernels.quant_format import QuantWeight
from kernels.reference.quant_weight import dequantize as reference_dequantize

ROWS_PER_LAUNCH = 32768  # quant_embedding has one program row per matrix row, 65,535 at most


def matrix(weight: QuantWeight, dtype: torch.dtype) -> Tensor:
    """The whole of a matrix: [num_rows, num_cols] in `dtype`, a new tensor but for numbers stored as such."""
    if weight.format.is_float:
        return weight.quants.to(dtype)
    if not weight.quants.is_cuda:
        return reference_dequantize(weight).to(dtype)
    out = torch.empty(weight.num_rows, weight.num_cols, dtype=dtype, device=weight.quants.device)
    dequantize(weight, out)
    return out


def rows(weight: QuantWeight, ids: Tensor) -> Tensor:
    """Rows `ids` [num_rows] int64 of a quantised matrix: [num_rows, num_cols] f32."""
    if not weight.quants.is_cuda:
        return reference_dequantize(weight)[ids]
    out = torch.empty(ids.shape[0], weight.num_cols, device=ids.device)
    for some_ids, target in zip(torch.split(ids, ROWS_PER_LAUNCH), torch.split(out, ROWS_PER_LAUNCH)):
        quant_embedding(some_ids, weight, target)
    return out
