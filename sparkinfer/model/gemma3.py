"""`gemma3`: norms around each half, five sliding-window layers to one global, tanh GELU, scaled embedding."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import SandwichBlock
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.rope import rope_of, sliding_rope_of
from sparkinfer.model.transformer import Transformer

VARIANT = AttentionVariant(has_qk_norm=True)


class Gemma3(Transformer):
    """Local and global attention, each with a rotary base of its own; the embedding times sqrt(hidden_size)."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        ropes = {"attention": rope_of(hparams, device), "sliding_attention": sliding_rope_of(hparams, device)}
        blocks = [
            SandwichBlock(
                hparams,
                Attention(hparams, layer, ropes[layer_type], VARIANT),
                FeedForward(hparams, "gelu_tanh"),
                hparams.rms_norm_eps,
            )
            for layer, layer_type in enumerate(hparams.layer_types)
        ]
        super().__init__(hparams, blocks, ropes)
        self.embedding_factor = math.sqrt(hparams.hidden_size)
