"""`qwen35`: three gated-delta-net layers to one of gated attention, SwiGLU; Qwen3.5, 3.6 and 3.8 dense."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.attention import Attention, AttentionVariant
from sparkinfer.model.block import FeedForwardPart, HybridBlock, Mixer
from sparkinfer.model.feed_forward import FeedForward
from sparkinfer.model.gated_delta_net import GatedDeltaNet
from sparkinfer.model.rope import rope_of
from sparkinfer.model.transformer import Transformer

VARIANT = AttentionVariant(has_qk_norm=True, gate="in_query")


class HybridTransformer(Transformer):
    """Gated delta nets and gated attention as the layer types say, over any feed-forward part."""

    def __init__(self, hparams: HParams, feed_forward: Callable[[int], FeedForwardPart], device: torch.device) -> None:
        rope = rope_of(hparams, device)

        def mixer(layer: int) -> Mixer:
            if hparams.layer_types[layer] == "gated_delta_net":
                return GatedDeltaNet(hparams, layer)
            return Attention(hparams, layer, rope, VARIANT)

        blocks = [HybridBlock(hparams, mixer(layer), feed_forward(layer)) for layer in range(hparams.num_layers)]
        super().__init__(hparams, blocks, {"attention": rope})


class Qwen35(HybridTransformer):
    """The dense hybrid."""

    def __init__(self, hparams: HParams, tensor_names: Collection[str], device: torch.device) -> None:
        super().__init__(hparams, lambda layer: FeedForward(hparams), device)
