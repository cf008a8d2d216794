"""`muse-glimmer`: norms around each half, gated attention, sliding layers with and global layers without positions."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from kernels.reference.rms_norm import rms_norm
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import SandwichBlock
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.rope import sliding_rope_of
from sparkinfer.model.transformer import Transformer

VARIANT = AttentionVariant(has_qk_norm=True, gate="separate")
POST_NORM_EPS = 1e-8  # as the published model fixes it; the metadata names only the eps of the other norms


class MuseGlimmer(Transformer):
    """Local attention with rotary pairs (2j, 2j+1), global attention without positions; scaled and capped logits."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        ropes = {"sliding_attention": sliding_rope_of(hparams, device)}
        blocks = [
            SandwichBlock(
                hparams,
                Attention(hparams, layer, ropes.get(layer_type), VARIANT),
                FeedForward(hparams),
                POST_NORM_EPS,
            )
            for layer, layer_type in enumerate(hparams.layer_types)
        ]
        super().__init__(hparams, blocks, ropes)

    def embed(self, input_ids: Tensor) -> Tensor:
        """The embedding through a norm without weights."""
        return rms_norm(self.token_embd(input_ids), None, self.hparams.rms_norm_eps)

    def head(self, x: Tensor) -> Tensor:
        """cap * tanh(logits * scale / cap)."""
        logits, cap = super().head(x) * self.hparams.logit_scale, self.hparams.final_logit_softcapping
        return torch.tanh(logits / cap) * cap if cap else logits
