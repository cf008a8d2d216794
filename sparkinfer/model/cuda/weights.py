"""A model's layers as the decode kernels want them: planes of quantised weights, matrices with one input joined.

Owns no computation and no loading; knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gated_delta_step import DeltaNetWeights
from kernels.quant_format import QuantWeight
from kernels.rope_store_kv import HeadShape


@dataclass(frozen=True, slots=True)
class Ends:
    """What happens to the embedding before the first layer, and to the logits after the output matrix.

    embedding_scale: its factor; norms_embedding: or it goes through an RMS norm without weights
    logit_scale, logit_cap: cap * tanh(logits * scale / cap); 0: no cap
    """

    embedding_scale: float = 1.0
    norms_embedding: bool = False
    logit_scale: float = 1.0
    logit_cap: float = 0.0

    def enter(self, x: Tensor, eps: float) -> None:
        """x: [num_tokens, hidden] f32, changed in place."""
        if self.norms_embedding:
            x.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))
        elif self.embedding_scale != 1.0:
            x.mul_(self.embedding_scale)

    def leave(self, logits: Tensor) -> None:
        """logits: [num_tokens, vocab_size] f32, changed in place."""
        if self.logit_cap:
            logits.mul_(self.logit_scale / self.logit_cap).tanh_().mul_(self.logit_cap)
        elif self.logit_scale != 1.0:
            logits.mul_(self.logit_scale)


PLAIN_ENDS = Ends()


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """qkv: up to three matrices whose rows are q (with gates) | k | v; norms: per-head weights of q and k, or None.

    bias: [rows of qkv] f32 added to the projection, or None
    inv_freq: [n_rot / 2] f32, of this layer; zeros turn nothing; None: the model's
    window: tokens that a query sees, itself counted; 0: all
    scale: factor of the scores; None: 1 / sqrt(head_dim)
    """

    qkv: tuple[QuantWeight, ...]
    norms: tuple[Tensor, Tensor] | None
    output: QuantWeight
    bias: Tensor | None = None
    inv_freq: Tensor | None = None
    window: int = 0
    scale: float | None = None

    @property
    def inputs(self) -> tuple[QuantWeight, ...]:
        """The matrices that read the layer's input, in one launch."""
        return self.qkv


@dataclass(frozen=True, slots=True)
class DeltaNetLayer:
    """projections: up to three matrices whose rows are q | k | v | z | alpha | beta."""

    projections: tuple[QuantWeight, ...]
    small: DeltaNetWeights
    output: QuantWeight

    @property
    def inputs(self) -> tuple[QuantWeight, ...]:
        """The matrices that read the layer's input, in one launch."""
        return self.projections


@dataclass(frozen=True, slots=True)
class DenseFFN:
    """down(act(gate x) * up x), act being SiLU or GELU in its tanh form.

    half_factor: power of two that keeps act(gate x) * up x within f16 (half_factor.py)
    """

    gate: QuantWeight
    up: QuantWeight
    down: QuantWeight
    half_factor: float
    is_gelu: bool = False

    @property
    def inputs(self) -> tuple[QuantWeight, ...]:
        """The matrices that read the layer's input, in one launch."""
        return self.gate, self.up


@dataclass(frozen=True, slots=True)
class ExpertFFN:
    """router: F32, one row per expert and, with a shared expert, its gate's row last; shared: gate, up, down or
    None.

    half_factor, shared_factor: powers of two that keep silu(gate x) * up x within f16 (half_factor.py)
    """

    router: QuantWeight
    gate: QuantWeight
    up: QuantWeight
    down: QuantWeight
    shared: tuple[QuantWeight, QuantWeight, QuantWeight] | None
    top_k: int
    half_factor: float
    shared_factor: float = 1.0

    @property
    def inputs(self) -> tuple[QuantWeight, ...]:
        """The router; the experts read their input in no order of the tensor cores."""
        return (self.router,)


@dataclass(frozen=True, slots=True)
class DecodeLayer:
    """Norm weights are f32 [hidden]; ffn_norm precedes the feed-forward part.

    post_norms: of what attention and the (dense) feed-forward part add to the residual stream, or None
    """

    attn_norm: Tensor
    mixer: AttentionLayer | DeltaNetLayer
    ffn_norm: Tensor
    ffn: DenseFFN | ExpertFFN
    post_norms: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """Everything one decode step reads; heads: the cut of an attention layer's projected row; inv_freq: [n_rot / 2]
    f32; fp8_prompts: whether products of prompts may round weights and inputs to e4m3 (kernels/fp8_products.py)."""

    embedding: QuantWeight
    layers: tuple[DecodeLayer, ...]
    output_norm: Tensor
    output: QuantWeight
    heads: HeadShape
    inv_freq: Tensor
    eps: float
    post_eps: float = 0.0  # of post_norms
    ends: Ends = PLAIN_ENDS
    fp8_prompts: bool = False

    @property
    def hidden_size(self) -> int:
        return self.embedding.num_cols
