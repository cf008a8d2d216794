"""A model's layers as the decode kernels want them: planes of quantised weights, matrices with one input joined.

Owns no computation and no loading; knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.gated_delta_step import DeltaNetWeights
from kernels.quant_format import QuantWeight
from kernels.rope_store_kv import HeadShape


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """qkv: up to three matrices whose rows are q (with gates) | k | v; norms: per-head weights of q and k, or None.

    bias: [rows of qkv] f32 added to the projection, or None
    """

    qkv: tuple[QuantWeight, ...]
    norms: tuple[Tensor, Tensor] | None
    output: QuantWeight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DeltaNetLayer:
    """projections: up to three matrices whose rows are q | k | v | z | alpha | beta."""

    projections: tuple[QuantWeight, ...]
    small: DeltaNetWeights
    output: QuantWeight


@dataclass(frozen=True, slots=True)
class DenseFFN:
    gate: QuantWeight
    up: QuantWeight
    down: QuantWeight


@dataclass(frozen=True, slots=True)
class ExpertFFN:
    """router: F32, one row per expert and, with a shared expert, its gate's row last; shared: gate, up, down or
    None."""

    router: QuantWeight
    gate: QuantWeight
    up: QuantWeight
    down: QuantWeight
    shared: tuple[QuantWeight, QuantWeight, QuantWeight] | None
    top_k: int


@dataclass(frozen=True, slots=True)
class DecodeLayer:
    """Norm weights are f32 [hidden]; ffn_norm precedes the feed-forward part."""

    attn_norm: Tensor
    mixer: AttentionLayer | DeltaNetLayer
    ffn_norm: Tensor
    ffn: DenseFFN | ExpertFFN


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """Everything one decode step reads; heads: the cut of an attention layer's projected row; inv_freq: [n_rot / 2]
    f32."""

    embedding: QuantWeight
    layers: tuple[DecodeLayer, ...]
    output_norm: Tensor
    output: QuantWeight
    heads: HeadShape
    inv_freq: Tensor
    eps: float

    @property
    def hidden_size(self) -> int:
        return self.embedding.num_cols
