"""act(gate) * up, quantised, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantActivation
from kernels.reference.activation import activate_and_mul
from kernels.reference.quant_gemv import quantize_rows


def activation(x: Tensor, is_gelu: bool) -> Tensor:
    """SiLU, or GELU in its tanh form."""
    return torch.nn.functional.gelu(x, approximate="tanh") if is_gelu else torch.nn.functional.silu(x)


def gated_activation(gate_up: Tensor, is_gelu: bool) -> QuantActivation:
    """gate_up: [num_tokens, 2 * ffn] f32, gate first -> [num_tokens, ffn]."""
    return quantize_rows(activate_and_mul(gate_up, lambda gate: activation(gate, is_gelu)))
