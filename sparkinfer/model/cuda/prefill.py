"""Chunks of prompts on the decode kernels' weights: one dequantised matrix at a time, then cuBLAS's products.

Keys, values, states and convolution inputs land where and how the decode step reads them, so that the two may follow
each other at any token. Nothing here waits for the device or depends on more than the tables' sizes, so that a chunk
may be captured as a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.delta_rule_chunks import DeltaRuleInputs
from kernels.plain_rows import fits, plain_rows
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.spans import Spans
from sparkinfer.model.cuda import dequantize
from sparkinfer.model.cuda.experts import grouped_experts, have_kernels
from sparkinfer.model.cuda.output_head import OutputHead
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.prompt_ops import PromptOps
from sparkinfer.model.cuda.prompt_products import PromptProducts
from sparkinfer.model.cuda.weights import AttentionLayer, DecodeLayer, DecodeWeights, DeltaNetLayer, DenseFFN, ExpertFFN

PostNorm = tuple[Tensor, float] | None


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """Chunks laid end to end; input_ids, positions, slot_mapping: [num_tokens] int64."""

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    spans: Spans


@dataclass(frozen=True, slots=True)
class _Added:
    """What the residual stream still gets: a sum, its first term times `factor`, normed where `post` says so."""

    terms: tuple[Tensor, ...] = ()
    post: PostNorm = None
    factor: float = 1.0


def keeps_rows_apart(weights: DecodeWeights) -> bool:
    """Whether prompts have kernels whose rows do not depend on those beside them, for all of a model's layers."""
    parts = [layer.ffn for layer in weights.layers if isinstance(layer.ffn, ExpertFFN)]
    return all(have_kernels(ffn) and fits(ffn.router) for ffn in parts)


def _product_shapes(weights: DecodeWeights) -> set[tuple[int, int]]:
    """(num_rows, num_cols) of the matrices that products of prompts take."""
    together: list[Sequence[QuantWeight]] = []
    for layer in weights.layers:
        mixer, ffn = layer.mixer, layer.ffn
        together += [mixer.qkv if isinstance(mixer, AttentionLayer) else mixer.projections, [mixer.output]]
        dense = (ffn.gate, ffn.up, ffn.down) if isinstance(ffn, DenseFFN) else ffn.shared
        if dense is not None:
            together += [dense[:2], dense[2:]]
    return {(sum(weight.num_rows for weight in some), some[0].num_cols) for some in together}


class Prefill:
    """Runs chunks of any lengths together.

    Products of f16 numbers (f32 on a CPU), or of e4m3 ones where the weights say so; sums, norms and the residual
    stream in f32.
    """

    def __init__(
        self, weights: DecodeWeights, pools: DecodePools, device: torch.device, is_deterministic: bool = False
    ) -> None:
        """is_deterministic: a row's bits depend on its sequence alone; takes weights that `keeps_rows_apart`."""
        self._is_deterministic = is_deterministic
        self.head = OutputHead(weights)
        self._weights = weights
        self._pools = pools
        self._device = device
        self._ops = PromptOps.of(device)
        self._products = PromptProducts(self._ops, is_deterministic, weights.fp8_prompts)

    def settle(self, num_tokens: int) -> None:
        """Make steps of so many tokens cheaper where bits count; waits for the device."""
        self._products.settle(num_tokens, _product_shapes(self._weights), self._device)

    def run(self, batch: PrefillBatch) -> Tensor:
        """Store keys, values and states of the batch's tokens.

        returns [num_tokens, hidden_size] f32, the residual stream of each
        """
        weights = self._weights
        x = dequantize.rows(weights.embedding, batch.input_ids)
        weights.ends.enter(x, weights.eps)
        added = _Added()
        for index, layer in enumerate(weights.layers):
            hidden, _ = self._add_norm(x, added, layer.attn_norm)
            if isinstance(layer.mixer, AttentionLayer):
                mixed = self._attention(layer.mixer, index, hidden, batch)
            else:
                mixed = self._delta_net(layer.mixer, index, hidden, batch)
            has_experts = isinstance(layer.ffn, ExpertFFN)
            joined = _Added((mixed,), self._post(layer, 0))
            hidden, plain = self._add_norm(x, joined, layer.ffn_norm, has_experts)
            if isinstance(layer.ffn, ExpertFFN):
                added = self._experts(layer.ffn, hidden, plain)
            else:
                added = self._dense(layer.ffn, hidden, self._post(layer, 1))
        self._add_norm(x, added, weights.output_norm)
        return x

    def _post(self, layer: DecodeLayer, half: int) -> PostNorm:
        return None if layer.post_norms is None else (layer.post_norms[half], self._weights.post_eps)

    def _half(self, num_tokens: int, width: int) -> Tensor:
        return torch.empty(num_tokens, width, dtype=self._ops.half, device=self._device)

    def _add_norm(
        self, x: Tensor, added: _Added, norm: Tensor, needs_plain: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Add to the residual stream in place; its norm for products, and in f32 where that is needed."""
        half = self._half(*x.shape)
        plain = torch.empty_like(x) if needs_plain else None
        self._ops.add_norm(x, added.terms, added.post, norm, self._weights.eps, half, plain, added.factor)
        return half, half if plain is None else plain

    def _attention(self, layer: AttentionLayer, index: int, hidden: Tensor, batch: PrefillBatch) -> Tensor:
        heads, weights, num_tokens = self._weights.heads, self._weights, hidden.shape[0]
        projected = self._products.product(hidden, layer.qkv)
        if layer.bias is not None:
            projected += layer.bias
        kv, kv_scales = self._pools.kv[index], self._pools.kv_scales[index]
        assert kv is not None
        query = self._ops.query if kv_scales is None else self._ops.half
        q = torch.empty(num_tokens, heads.num_q_heads, heads.head_dim, dtype=query, device=self._device)
        inv_freq = weights.inv_freq if layer.inv_freq is None else layer.inv_freq
        self._ops.rope(projected, heads, batch.positions, batch.slot_mapping, inv_freq, layer.norms, q, kv, kv_scales,
                       weights.eps)
        out = self._half(num_tokens, heads.num_q_heads * heads.head_dim)
        scale = heads.head_dim**-0.5 if layer.scale is None else layer.scale
        self._ops.attention(q, projected, kv, kv_scales, batch.spans, heads, self._pools.block_size, layer.window,
                            scale, out)
        return self._products.product(out, [layer.output])

    def _delta_net(self, layer: DeltaNetLayer, index: int, hidden: Tensor, batch: PrefillBatch) -> Tensor:
        small, num_tokens = layer.small, hidden.shape[0]
        ring, state, held = self._pools.conv[index], self._pools.state[index], self._pools.held[index]
        assert ring is not None
        assert state is not None
        assert held is not None
        num_heads, d = state.shape[1], state.shape[2]
        channels, width = small.conv.shape[1], num_heads * d
        projected = self._products.product(hidden, layer.projections)
        mixed, z, alpha, beta = torch.split(projected, [channels, width, num_heads, num_heads], dim=1)
        heads = self._half(num_tokens, channels).view(num_tokens, -1, d)
        self._ops.conv_heads(mixed, small.conv, ring, batch.spans, small.num_k_heads, heads)
        inputs = DeltaRuleInputs(heads, alpha, beta, small.a, small.dt_bias, small.num_k_heads)
        recalled = self._half(num_tokens, width)
        self._ops.delta_rule(inputs, batch.spans, state, held, recalled)
        out = self._half(num_tokens, width)
        self._ops.gated_norm(recalled, z, small.norm, self._weights.eps, out)
        return self._products.product(out, [layer.output])

    def _router(self, plain: Tensor, router: QuantWeight) -> Tensor:
        if self._is_deterministic and plain.is_cuda:
            return functools.reduce(torch.add, plain_rows(plain, router).unbind(0))
        return plain @ router.quants.T

    def _dense(self, ffn: DenseFFN, hidden: Tensor, post: PostNorm) -> _Added:
        matrices = ffn.gate, ffn.up, ffn.down
        out = self._products.gated(hidden, matrices, None, ffn.half_factor, ffn.is_gelu)
        return _Added((out,), post, 1.0 / ffn.half_factor)

    def _experts(self, ffn: ExpertFFN, hidden: Tensor, plain: Tensor) -> _Added:
        assert ffn.router.format == QuantFormat.F32
        logits = self._router(plain, ffn.router)
        routed, _ = grouped_experts(hidden, logits, ffn)
        if ffn.shared is None:
            return _Added((routed,))
        out = self._products.gated(hidden, ffn.shared, logits[:, -1], ffn.shared_factor, False)
        return _Added((out, routed), factor=1.0 / ffn.shared_factor)
