"""The plain decoder that several families share: attention and SwiGLU in every layer, a norm before each."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import PreNormBlock
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.rope import rope_of
from sparkinfer.model.transformer import Transformer


class DenseTransformer(Transformer):
    """A family differs by its `variant` of attention."""

    variant: ClassVar[AttentionVariant] = AttentionVariant()

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        self.attention_rope = rope_of(hparams, device)
        blocks = [
            PreNormBlock(
                hparams, Attention(hparams, layer, self.attention_rope, self.variant), FeedForward(hparams)
            )
            for layer in range(hparams.num_layers)
        ]
        super().__init__(hparams, blocks, {"attention": self.attention_rope})
