"""The dense feed-forward layer: down(act(gate x) * up x). Knows its matrices; never its place in the model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.reference.activation import silu_and_mul
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.linear import Linear, fuse
from sparkinfer.model.module import Module


class FeedForward(Module):
    """Gated feed-forward with SiLU (SwiGLU) or another gated activation."""

    def __init__(self, hparams: HParams, activation: Callable[[Tensor], Tensor] = silu_and_mul) -> None:
        self._activation = activation
        self.ffn_gate = Linear(hparams.hidden_size, hparams.ffn_size)
        self.ffn_up = Linear(hparams.hidden_size, hparams.ffn_size)
        self.ffn_down = Linear(hparams.ffn_size, hparams.hidden_size)

    def prepare(self) -> None:
        """Fuse gate and up."""
        self._gate_up = fuse(self.ffn_gate, self.ffn_up)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        return self.ffn_down(self._activation(self._gate_up(x)))
