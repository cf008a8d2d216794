"""Rows of the residual stream -> logits, with the decode step's own kernels. Knows the last norm; never layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.quant_gemv import quant_gemv
from kernels.quantize_rows import quantize_rows
from sparkinfer.model.cuda.decode import empty_activation
from sparkinfer.model.cuda.half_forms import HalfForms
from sparkinfer.model.cuda.weights import DecodeWeights

HEAD_SIZES = (1, 2, 4, 8)  # rows in one launch, 8 the most that the kernel takes: each number is compiled by itself


class OutputHead:
    """The last norm and the output matrix: the first token of an answer is chosen as all later ones are."""

    def __init__(self, weights: DecodeWeights, sizes: tuple[int, ...] = HEAD_SIZES) -> None:
        """sizes: a row's bits may differ between them."""
        self._weights = weights
        self.vocab_size = weights.output.num_rows
        self.sizes = sizes

    def logits(self, residual: Tensor) -> Tensor:
        """[num_rows, hidden_size] f32 -> [num_rows, vocab_size] f32."""
        return torch.cat([self._some_logits(rows) for rows in torch.split(residual, self.sizes[-1])])

    def _some_logits(self, rows: Tensor) -> Tensor:
        weights, num_rows = self._weights, rows.shape[0]
        padding = next(size for size in self.sizes if size >= num_rows) - num_rows
        rows = F.pad(rows, (0, 0, 0, padding)).contiguous()
        hidden = HalfForms(empty_activation(rows.shape[0], weights.hidden_size, rows.device)).read_by([weights.output])
        out = torch.empty(rows.shape[0], self.vocab_size, device=rows.device)
        quantize_rows(rows, weights.output_norm, hidden, weights.eps)
        quant_gemv(hidden, [weights.output], weights.eps, out=out)
        weights.ends.leave(out)
        return out[:num_rows]
