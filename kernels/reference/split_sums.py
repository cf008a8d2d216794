"""Sums of parts and what follows them, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantActivation
from kernels.reference.quant_gemv import quantize_rows


def total(parts: Tensor) -> Tensor:
    """[num_splits, num_tokens, n] -> [num_tokens, n], one part after the other."""
    result = parts[0].clone()
    for part in parts[1:]:
        result += part
    return result


def swiglu(gate: Tensor, up: Tensor) -> QuantActivation:
    """silu(sum of gate's parts) * (sum of up's), quantised."""
    return quantize_rows(torch.nn.functional.silu(total(gate)) * total(up))
