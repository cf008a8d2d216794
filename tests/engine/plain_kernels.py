"""Stand-ins for the kernels that CudaModelRunner launches: the same contracts in plain torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from kernels.quant_format import QuantActivation, QuantWeight
from kernels.reference import quant_gemv as reference
from sparkinfer.model.cuda.decode import DecodeInputs
from sparkinfer.model.cuda.weights import DecodeWeights
from tests.kernels.reference_step import reference_step


class PlainDecodeStep:
    """DecodeStep, computed by the references."""

    def __init__(
        self, weights: DecodeWeights, num_seqs: int, device: torch.device, pdl: bool = True, workspace: object = None
    ) -> None:
        self._weights = weights
        self.logits = torch.full((num_seqs, weights.output.num_rows), torch.nan)
        self.residual = torch.zeros(num_seqs, weights.hidden_size)

    def run(self, inputs: DecodeInputs) -> Tensor:
        self.logits.copy_(reference_step(self._weights, inputs, self.residual))
        inputs.input_ids.copy_(self.logits.argmax(-1))
        return self.logits


def _quantize_rows(x: Tensor, norm_weight: Tensor, out: QuantActivation, eps: float) -> None:
    result = reference.quantize_rows(x, norm_weight)
    for field in dataclasses.fields(QuantActivation):
        made = getattr(result, field.name)
        if made is not None:  # nothing here reads f16 rows
            getattr(out, field.name).copy_(made)


def _quant_gemv(x: QuantActivation, weights: list[QuantWeight], eps: float, out: Tensor) -> None:
    out.copy_(reference.quant_gemv(x, weights, eps))


def use_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkinfer.engine.cuda_graph.decode_step", PlainDecodeStep)
    monkeypatch.setattr("sparkinfer.model.cuda.output_head.quantize_rows", _quantize_rows)
    monkeypatch.setattr("sparkinfer.model.cuda.output_head.quant_gemv", _quant_gemv)
