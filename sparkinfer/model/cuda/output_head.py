"""Rows of the residual stream -> logits, with the decode step's own kernels. Knows the last norm; never layers."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_gemv import quant_gemv
from kernels.quantize_rows import quantize_rows
from sparkinfer.model.cuda.decode import empty_activation
from sparkinfer.model.cuda.weights import DecodeWeights

HEAD_ROWS = 8  # rows of the output head in one launch, the most that its kernel takes


class OutputHead:
    """The last norm and the output matrix: the first token of an answer is chosen as all later ones are."""

    def __init__(self, weights: DecodeWeights) -> None:
        self._weights = weights
        self.vocab_size = weights.output.num_rows

    def logits(self, residual: Tensor) -> Tensor:
        """[num_rows, hidden_size] f32 -> [num_rows, vocab_size] f32."""
        weights, device = self._weights, residual.device
        out = torch.empty(residual.shape[0], self.vocab_size, device=device)
        for rows, target in zip(torch.split(residual, HEAD_ROWS), torch.split(out, HEAD_ROWS)):
            hidden = empty_activation(rows.shape[0], weights.hidden_size, device)
            quantize_rows(rows, weights.output_norm, hidden)
            quant_gemv(hidden, [weights.output], weights.eps, out=target)
        return out
