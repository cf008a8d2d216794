"""`llama`: plain attention and SwiGLU, rotary pairs (2j, 2j+1); SmolLM2 and the Llama family."""

from __future__ import annotations

from collections.abc import Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import PreNormBlock
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.module import Module, unloaded
from sparkinfer.model.rope import Rope, rope_of
from sparkinfer.model.transformer import Transformer


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


class Llama(Transformer):
    """Attention and SwiGLU; optional `rope_freqs.weight`."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        rope = rope_of(hparams, device)
        blocks = [
            PreNormBlock(hparams, Attention(hparams, layer, rope, AttentionVariant()), FeedForward(hparams))
            for layer in range(hparams.num_layers)
        ]
        super().__init__(hparams, blocks, {"attention": rope})
        if "rope_freqs.weight" in tensor_names:
            self.rope_freqs = RopeDivisors(rope)
