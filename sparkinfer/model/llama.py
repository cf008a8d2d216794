"""`llama`: plain attention and SwiGLU, rotary pairs (2j, 2j+1); SmolLM2 and the Llama family."""

from __future__ import annotations

from collections.abc import Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.dense import DenseTransformer
from sparkinfer.model.module import Module, unloaded
from sparkinfer.model.rope import Rope


class RopeDivisors(Module):
    """Divides the rotary frequencies by a stored vector: how Llama 3 files carry their long-context scaling.

    weight: [dim / 2] f32
    """

    def __init__(self, rope: Rope) -> None:
        self.weight = unloaded(rope.inv_freq.numel())
        self._rope = rope

    def prepare(self) -> None:
        """Apply the divisors."""
        self._rope.inv_freq = self._rope.inv_freq / self.weight


class Llama(DenseTransformer):
    """Attention and SwiGLU; optional `rope_freqs.weight`."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        super().__init__(hparams, tensor_names, device)
        if "rope_freqs.weight" in tensor_names:
            self.rope_freqs = RopeDivisors(self.attention_rope)
