"""The gated activations of feed-forward layers: act(gate) * up, gate and up side by side in one row."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up.

    gate_up: [..., 2 * ffn], gate first
    returns  [..., ffn]
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up with the tanh form of GELU, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    gate_up: [..., 2 * ffn], gate first
    returns  [..., ffn]
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
