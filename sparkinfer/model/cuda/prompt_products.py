"""x W^T of a prompt's rows with matrices as they lie in memory: as f16, with rows apart, or as e4m3.

Knows which product a matrix takes; never layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from kernels.fp8_products import fits, fp8_products, gate_up_rows, quantize_rows
from kernels.quant_format import QuantWeight
from kernels.reference.fp8_products import fp8_products as plain_fp8_products
from sparkinfer.model.cuda import dequantize
from sparkinfer.model.cuda.prompt_ops import PromptOps
from sparkinfer.model.cuda.row_products import RowProducts


class PromptProducts:
    """One matrix at a time becomes plain numbers, for the length of a product."""

    def __init__(self, ops: PromptOps, is_deterministic: bool, takes_fp8: bool) -> None:
        """is_deterministic: a row's bits depend on no other; takes_fp8: e4m3 where it fits"""
        self._ops = ops
        self._is_deterministic = is_deterministic
        self._takes_fp8 = takes_fp8
        self._row_products = RowProducts()

    def settle(self, num_tokens: int, shapes: Collection[tuple[int, int]], device: torch.device) -> None:
        """As RowProducts has it; nothing where no bits count."""
        if self._is_deterministic and device.type == "cuda":
            self._row_products.settle(num_tokens, shapes, device)

    def product(self, x: Tensor, weights: Sequence[QuantWeight]) -> Tensor:
        """[num_tokens, num_cols] of the ops' `half` -> [num_tokens, rows of all the matrices] f32."""
        if self._takes_fp8 and fits(weights):
            return fp8_products(quantize_rows(x), weights) if x.is_cuda else plain_fp8_products(x, weights)
        matrix = dequantize.matrices(weights, self._ops.half)
        if x.dtype == torch.float32:
            return x @ matrix.T
        if self._is_deterministic:
            return self._row_products.product(x, matrix)
        return torch.mm(x, matrix.T, out_dtype=torch.float32)

    def gated(
        self, x: Tensor, matrices: tuple[QuantWeight, QuantWeight, QuantWeight], row_gate: Tensor | None, factor: float,
        is_gelu: bool,
    ) -> Tensor:
        """A whole gated feed-forward part, what is between its halves times `factor`: [num_tokens, hidden] f32.

        matrices: gate, up, down; row_gate: [num_tokens] f32 at any stride, whose sigmoid is a factor, too, or None
        """
        gate, up, down = matrices
        if self._takes_fp8 and x.is_cuda and fits([gate, up]) and fits([down]):
            both = fp8_products(quantize_rows(x), [gate, up], torch.bfloat16)
            return fp8_products(gate_up_rows(both, row_gate, is_gelu, factor), [down])
        inner = torch.empty(x.shape[0], gate.num_rows, dtype=self._ops.half, device=x.device)
        self._ops.gate_up(self.product(x, [gate, up]), row_gate, is_gelu, inner, factor)
        return self.product(inner, [down])
