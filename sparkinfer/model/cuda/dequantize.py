"""Planes -> a plain matrix for the length of one product, and embeddings. Knows formats; never layers."""

from __future__ import annotations

from collections.abc import Sequence

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


def matrices(weights: Sequence[QuantWeight], dtype: torch.dtype) -> Tensor:
    """Several matrices of one width, rows end to end: [rows of all, num_cols] in `dtype`."""
    if len(weights) == 1:
        return matrix(weights[0], dtype)
    first = weights[0].quants
    out = torch.empty(sum(w.num_rows for w in weights), weights[0].num_cols, dtype=dtype, device=first.device)
    for weight, target in zip(weights, torch.split(out, [w.num_rows for w in weights])):
        if weight.format.is_float or not first.is_cuda:
            target.copy_(matrix(weight, dtype))
        else:
            dequantize(weight, target)
    return out


def rows(weight: QuantWeight, ids: Tensor) -> Tensor:
    """Rows `ids` [num_rows] int64 of a quantised matrix: [num_rows, num_cols] f32."""
    if not weight.quants.is_cuda:
        return reference_dequantize(weight)[ids]
    out = torch.empty(ids.shape[0], weight.num_cols, device=ids.device)
    for some_ids, target in zip(torch.split(ids, ROWS_PER_LAUNCH), torch.split(out, ROWS_PER_LAUNCH)):
        quant_embedding(some_ids, weight, target)
    return out
