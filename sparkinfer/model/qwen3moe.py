"""`qwen3moe`: qwen3's attention with experts in every layer; Qwen3-30B-A3B."""

from __future__ import annotations

from collections.abc import Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import PreNormBlock
from sparkinfer.model.moe import MixtureOfExperts
from sparkinfer.model.rope import rope_of
from sparkinfer.model.transformer import Transformer

VARIANT = AttentionVariant(has_qk_norm=True)


class Qwen3Moe(Transformer):
    """Attention with head norms and a mixture of experts."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        rope = rope_of(hparams, device)
        blocks = [
            PreNormBlock(
                hparams, Attention(hparams, layer, rope, VARIANT), MixtureOfExperts(hparams, layer, tensor_names)
            )
            for layer in range(hparams.num_layers)
        ]
        super().__init__(hparams, blocks, {"attention": rope})
