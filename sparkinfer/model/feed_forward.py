"""The dense feed-forward layer: down(act(gate x) * up x). Knows its matrices; never its place in the model."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from kernels.reference.activation import activate_and_mul
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.linear import Linear, fuse
from sparkinfer.model.module import Module


class FeedForward(Module):
    """Gated feed-forward with SiLU (SwiGLU) or another gated activation."""

    def __init__(self, hparams: HParams, activation: Literal["silu", "gelu_tanh"] = "silu") -> None:
        self.is_gelu = activation == "gelu_tanh"
        self.ffn_gate = Linear(hparams.hidden_size, hparams.ffn_size)
        self.ffn_up = Linear(hparams.hidden_size, hparams.ffn_size)
        self.ffn_down = Linear(hparams.ffn_size, hparams.hidden_size)

    def prepare(self) -> None:
        """Fuse gate and up."""
        self._gate_up = fuse(self.ffn_gate, self.ffn_up)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        activation = self.numerics.gelu_tanh if self.is_gelu else self.numerics.silu
        return self.ffn_down(activate_and_mul(self._gate_up(x), activation))
