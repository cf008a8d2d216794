"""x W^T of a prompt's rows with matrices as they lie in memory: as f16, with rows apart, or as e4m3.

Knows which product a matrix takes; never layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from kernels.fp8_products import fits, fp8_products
from kernels.quant_format import QuantWeight
from kernels.reference.fp8_products import fp8_products as plain_fp8_products
from sparkinfer.model.cuda import dequantize
from sparkinfer.model.cuda.row_products import RowProducts


class PromptProducts:
    """One matrix at a time becomes plain numbers, for the length of a product."""

    def __init__(self, half: torch.dtype, is_deterministic: bool, takes_fp8: bool) -> None:
        """half: of the operands; is_deterministic: a row's bits depend on no other; takes_fp8: e4m3 where it fits."""
        self._half = half
        self._is_deterministic = is_deterministic
        self._takes_fp8 = takes_fp8
        self._row_products = RowProducts()

    def settle(self, num_tokens: int, shapes: Collection[tuple[int, int]], device: torch.device) -> None:
        """As RowProducts has it; nothing where no bits count."""
        if self._is_deterministic and device.type == "cuda":
            self._row_products.settle(num_tokens, shapes, device)

    def product(self, x: Tensor, weights: Sequence[QuantWeight]) -> Tensor:
        """[num_tokens, num_cols] of `half` -> [num_tokens, rows of all the matrices] f32."""
        if self._takes_fp8 and fits(weights):
            return fp8_products(x, weights) if x.is_cuda else plain_fp8_products(x, weights)
        matrix = dequantize.matrices(weights, self._half)
        if x.dtype == torch.float32:
            return x @ matrix.T
        if self._is_deterministic:
            return self._row_products.product(x, matrix)
        return torch.mm(x, matrix.T, out_dtype=torch.float32)
