"""The gated activations of feed-forward layers: activation(gate) * up, gate and up side by side in one row."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def activate_and_mul(gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up.

    gate_up: [..., 2 * ffn], gate first
    returns  [..., ffn]
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate) * up
