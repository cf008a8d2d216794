"""Cutting, normalising, rotating and storing the q, k, v of one token per sequence, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.store_kv import store_kv
from kernels.rope_store_kv import HeadShape


def _rotate(x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
    """x: [num_tokens, heads, head_dim]; pairs (j, j + n_rot / 2)."""
    half = inv_freq.numel()
    angle = (positions.float()[:, None] * inv_freq)[:, None, :]
    u, v, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([u * cos - v * sin, v * cos + u * sin, rest], dim=-1)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope_store_kv(
    projected: Tensor, num_q_heads: int, num_kv_heads: int, head_dim: int, is_gated: bool, positions: Tensor,
    inv_freq: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of the tokens, each [num_tokens, heads, head_dim] f32."""
    num_tokens = projected.shape[0]
    width = num_q_heads * head_dim * (2 if is_gated else 1)
    q = projected[:, :width].reshape(num_tokens, num_q_heads, -1)[..., :head_dim]
    k, v = projected[:, width:].reshape(num_tokens, 2, num_kv_heads, head_dim).unbind(1)
    if norms is not None:
        q, k = _rms(q, norms[0], eps), _rms(k, norms[1], eps)
    return _rotate(q, positions, inv_freq), _rotate(k, positions, inv_freq), v


def write_rope_store_kv(
    projected: Tensor, shape: HeadShape, positions: Tensor, slot_mapping: Tensor, inv_freq: Tensor,
    norms: tuple[Tensor, Tensor] | None, q: Tensor, kv: tuple[Tensor, Tensor], kv_scales: tuple[Tensor, Tensor] | None,
    eps: float,
) -> None:
    """The kernel's arguments and results."""
    queries, keys, values = rope_store_kv(
        projected, shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.is_gated, positions, inv_freq, norms,
        eps,
    )
    q.copy_(queries)
    store_kv(keys, values, *kv, slot_mapping, kv_scales)
