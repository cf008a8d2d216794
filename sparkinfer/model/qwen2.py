"""`qwen2`: llama with biases on the query, key and value projections and rotary halves."""

from __future__ import annotations

from collections.abc import Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import PreNormBlock
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.rope import rope_of
from sparkinfer.model.transformer import Transformer

VARIANT = AttentionVariant(has_bias=True)


class Qwen2(Transformer):
    """Attention with biases and SwiGLU."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        rope = rope_of(hparams, device)
        blocks = [
            PreNormBlock(hparams, Attention(hparams, layer, rope, VARIANT), FeedForward(hparams))
            for layer in range(hparams.num_layers)
        ]
        super().__init__(hparams, blocks, {"attention": rope})
