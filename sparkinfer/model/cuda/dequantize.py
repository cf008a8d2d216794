"""Planes -> a plain matrix for the length of one product, and embeddings. Knows formats; never layers."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_embedding import quant_embedding
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference.quant_weight import dequantize as reference_dequantize

ROWS_PER_LAUNCH = 32768  # a launch has one program row per matrix row, 65,535 at most


class Dequantizer:
    """Makes matrices in `dtype`; holds the row numbers that the kernel wants, nothing else."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._rows = torch.arange(ROWS_PER_LAUNCH, device=device)

    def rows(self, weight: QuantWeight, ids: Tensor) -> Tensor:
        """Rows `ids` [num_rows] int64 of a quantised matrix: [num_rows, num_cols] f32."""
        if not weight.quants.is_cuda:
            return reference_dequantize(weight)[ids]
        out = torch.empty(ids.shape[0], weight.num_cols, device=ids.device)
        for some_ids, target in zip(torch.split(ids, ROWS_PER_LAUNCH), torch.split(out, ROWS_PER_LAUNCH)):
            quant_embedding(some_ids, weight, target)
        return out

    def matrix(self, weight: QuantWeight) -> Tensor:
        """[num_rows, num_cols] in the dtype, a new tensor."""
        if weight.format == QuantFormat.F32:
            return weight.quants.to(self._dtype)
        if not weight.quants.is_cuda:
            return reference_dequantize(weight).to(self._dtype)
        out = torch.empty(weight.num_rows, weight.num_cols, dtype=self._dtype, device=weight.quants.device)
        for start in range(0, weight.num_rows, ROWS_PER_LAUNCH):
            size = min(ROWS_PER_LAUNCH, weight.num_rows - start)
            quant_embedding(self._rows[:size], _rows_of(weight, start, size), out[start : start + size])
        return out


def _rows_of(weight: QuantWeight, start: int, size: int) -> QuantWeight:
    planes = (plane[start : start + size] for plane in (weight.quants, weight.high, weight.scales, weight.supers))
    return QuantWeight(weight.format, size, weight.num_cols, *planes)
