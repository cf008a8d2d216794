"""Softmax attention over the paged KV pool, in every variant of the supported models.

Knows its projections and layer index; never how rows of the pool are chosen (see step.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.reference.rms_norm import rms_norm
from kernels.reference.store_kv import store_kv
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.linear import Linear, fuse
from sparkinfer.model.module import Module
from sparkinfer.model.norm import RMSNorm
from sparkinfer.model.rope import Rope
from sparkinfer.model.step import Step


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """How an architecture's attention differs from the plain one."""

    has_bias: bool = False
    has_qk_norm: bool = False
    # Sigmoid gate on the output: rows of attn_q after each head's query rows, or a matrix of its own.
    gate: Literal["none", "in_query", "separate"] = "none"


class Attention(Module):
    """attn_output(attention(rope(norm(q)), rope(norm(k)), v)), optionally gated."""

    def __init__(self, hparams: HParams, layer: int, rope: Rope | None, variant: AttentionVariant) -> None:
        self.layer, self.layer_type = layer, hparams.layer_types[layer]
        self.rope, self.variant, self.eps = rope, variant, hparams.rms_norm_eps
        self._num_q_heads, self._num_kv_heads = hparams.num_q_heads, hparams.num_kv_heads
        self._head_dim, self.scale = hparams.head_dim, hparams.attention_scale
        hidden, q_size = hparams.hidden_size, hparams.num_q_heads * hparams.head_dim
        kv_size = hparams.num_kv_heads * hparams.head_dim
        self.attn_q = Linear(hidden, 2 * q_size if variant.gate == "in_query" else q_size, variant.has_bias)
        self.attn_k = Linear(hidden, kv_size, variant.has_bias)
        self.attn_v = Linear(hidden, kv_size, variant.has_bias)
        self.attn_output = Linear(q_size, hidden)
        if variant.gate == "separate":
            self.attn_gate = Linear(hidden, q_size)
        if variant.has_qk_norm:
            self.attn_q_norm = RMSNorm(hparams.head_dim, hparams.rms_norm_eps)
            self.attn_k_norm = RMSNorm(hparams.head_dim, hparams.rms_norm_eps)

    def prepare(self) -> None:
        """Fuse the input projections, and the two head norms into one row per head."""
        gate = [self.attn_gate] if self.variant.gate == "separate" else []
        self._projections = fuse(self.attn_q, self.attn_k, self.attn_v, *gate)
        if self.variant.has_qk_norm:
            q_norm = self.attn_q_norm.weight.expand(self._num_q_heads, -1)
            self._qk_norm = torch.cat((q_norm, self.attn_k_norm.weight.expand(self._num_kv_heads, -1)))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x: [num_tokens, hidden_size], normed -> [num_tokens, hidden_size]."""
        qk, v, gate = self._project(x)
        if self.variant.has_qk_norm:
            qk = rms_norm(qk, None, self.eps) * self._qk_norm
        if self.rope is not None:
            qk = self.rope.rotate(qk, step.angles[self.layer_type])
        q, k = qk[:, : self._num_q_heads], qk[:, self._num_q_heads :]
        k_cache, v_cache = step.kv_cache.layer(self.layer)
        kv_scales = step.kv_cache.scales(self.layer)
        store_kv(k, v, k_cache, v_cache, step.batch.slot_mapping, kv_scales)
        out = self.numerics.attend(q, k_cache, v_cache, step.attention[self.layer_type], self.scale, kv_scales)
        out = out.flatten(1)
        return self.attn_output(out if gate is None else out * self.numerics.sigmoid(gate))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries and keys together, values, and the gate.

        returns [num_tokens, num_q_heads + num_kv_heads, head_dim], [num_tokens, num_kv_heads, head_dim],
                and [num_tokens, num_q_heads * head_dim] or None
        """
        heads = self._projections(x).view(x.shape[0], -1, self._head_dim)
        num_q_heads, num_kv_heads = self._num_q_heads, self._num_kv_heads
        if self.variant.gate == "in_query":
            q_and_gate, k = heads[:, : 2 * num_q_heads], heads[:, 2 * num_q_heads : -num_kv_heads]
            return torch.cat((q_and_gate[:, 0::2], k), dim=1), heads[:, -num_kv_heads:], q_and_gate[:, 1::2].flatten(1)
        num_qk_heads = num_q_heads + num_kv_heads
        qk, v = heads[:, :num_qk_heads], heads[:, num_qk_heads : num_qk_heads + num_kv_heads]
        return qk, v, heads[:, num_qk_heads + num_kv_heads :].flatten(1) if self.variant.gate == "separate" else None
