"""Decode step of an attention layer before attention itself: per-head RMS norm of q and k, rope, k and v into the
cache.

One program per head (query, key and value heads alike) and token. The rotation pairs (j, j + n_rot / 2).
Bytes moved: the projected row once, one row of the cache. Accumulation: f32.
Reference:   kernels/reference/rope_store_kv.py
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How a projected row is cut: query heads (each followed by its output gate where `is_gated`), key heads, value
    heads."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    is_gated: bool

    @property
    def q_stride(self) -> int:
        return self.head_dim * (2 if self.is_gated else 1)

    @property
    def row(self) -> int:
        return self.num_q_heads * self.q_stride + 2 * self.num_kv_heads * self.head_dim


@triton.jit
def store_row(x, offs, cache_ptr, scale_ptr, row, D: tl.constexpr, INT8: tl.constexpr):
    """Write one head's vector `x` [BLOCK_D] as row `row` of a cache, with its scale where the cache is int8; returns
    what the cache now has, in f32."""
    if INT8:
        amax = tl.max(tl.abs(x), axis=0)
        scale = (amax / 127.0).to(tl.float16)
        inverse = tl.where(scale > 0.0, 1.0 / scale.to(tl.float32), 0.0)
        q = tl.minimum(tl.maximum(tl.floor(x * inverse + 0.5), -127.0), 127.0)
        tl.store(cache_ptr + row * D + offs, q.to(tl.int8), mask=offs < D)
        tl.store(scale_ptr + row, scale)
        kept = q * scale.to(tl.float32)
    else:
        stored = x.to(cache_ptr.dtype.element_ty)
        tl.store(cache_ptr + row * D + offs, stored, mask=offs < D)
        kept = stored.to(tl.float32)
    return kept


@triton.jit
def rotated_heads(
    base_ptr, stride_head, heads, offs, position, inv_freq_ptr, norm_ptr, eps, mask, D: tl.constexpr,
    N_ROT: tl.constexpr,
    NORM: tl.constexpr,
):
    """Heads at base_ptr + heads * stride_head, normalised and rotated; heads [G], offs [BLOCK_D], returns [G,
    BLOCK_D] f32."""
    HALF: tl.constexpr = N_ROT // 2
    partner = tl.where(offs < HALF, offs + HALF, tl.where(offs < N_ROT, offs - HALF, offs))
    starts = base_ptr + (heads * stride_head)[:, None]
    x = tl.load(starts + offs[None, :], mask=mask, other=0.0)
    y = tl.load(starts + partner[None, :], mask=mask, other=0.0)
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x = x * factor * tl.load(norm_ptr + offs, mask=offs < D, other=0.0)[None, :]
        y = y * factor * tl.load(norm_ptr + partner, mask=offs < D, other=0.0)[None, :]
    angle = position * tl.load(inv_freq_ptr + offs % HALF)
    y = y * (tl.where(offs < HALF, -1.0, 1.0) * tl.sin(angle))[None, :]
    return tl.where((offs < N_ROT)[None, :], x * tl.cos(angle)[None, :] + y, x)


@triton.jit
def _rope_store_kv_kernel(
    projected_ptr, stride_m, positions_ptr, slot_mapping_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr, q_ptr, k_ptr, v_ptr,
    k_scale_ptr, v_scale_ptr, eps, H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    Q_STRIDE: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr, INT8: tl.constexpr, PDL: tl.constexpr,
):
    head = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.arange(0, BLOCK_D)
    base = projected_ptr + m * stride_m + tl.where(head < H, head * Q_STRIDE, H * Q_STRIDE + (head - H) * D)
    row = tl.load(slot_mapping_ptr + m).to(tl.int64) * HK
    if head >= H + HK:
        x = tl.load(base + offs, mask=offs < D, other=0.0)
        store_row(x, offs, v_ptr, v_scale_ptr, row + head - H - HK, D, INT8)
    else:
        position = tl.load(positions_ptr + m).to(tl.float32)
        norm_ptr = q_norm_ptr if head < H else k_norm_ptr
        one = tl.arange(0, 1)
        x = rotated_heads(base, 0, one, offs, position, inv_freq_ptr, norm_ptr, eps, (offs < D)[None, :], D, N_ROT,
                          NORM)
        x = tl.sum(x, axis=0)
        if head < H:
            tl.store(q_ptr + (m * H + head) * D + offs, x, mask=offs < D)
        else:
            store_row(x, offs, k_ptr, k_scale_ptr, row + head - H, D, INT8)


def rope_store_kv(
    projected: Tensor,
    shape: HeadShape,
    positions: Tensor,
    slot_mapping: Tensor,
    inv_freq: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    kv_scales: tuple[Tensor, Tensor] | None,
    eps: float,
    pdl: bool = False,
) -> None:
    """Split, normalise, rotate and store one token of each sequence.

    projected:     [num_tokens, shape.row] f32
    positions, slot_mapping: [num_tokens] int64
    inv_freq:      [n_rot / 2] f32
    norms:         ([head_dim] f32 for q, the same for k), or None
    q:             [num_tokens, num_q_heads, head_dim] f32, written
    kv:            (k, v) each [num_slots, num_kv_heads, head_dim] bf16 or int8; rows slot_mapping written
    kv_scales:     with int8: (k, v) each [num_slots, num_kv_heads] f16
    """
    k, v = kv
    k_scale, v_scale = kv_scales or kv
    q_norm, k_norm = norms or (inv_freq, inv_freq)
    options = {"launch_pdl": True} if pdl else {}
    _rope_store_kv_kernel[(shape.num_q_heads + 2 * shape.num_kv_heads, projected.shape[0])](
        projected, projected.stride(0), positions, slot_mapping, inv_freq, q_norm, k_norm, q, k, v, k_scale, v_scale,
        eps,
        H=shape.num_q_heads, HK=shape.num_kv_heads, D=shape.head_dim, BLOCK_D=triton.next_power_of_2(shape.head_dim),
        Q_STRIDE=shape.q_stride, N_ROT=2 * inv_freq.numel(), NORM=norms is not None, INT8=kv_scales is not None,
        PDL=pdl, num_warps=1 if shape.head_dim <= 128 else 2, **options,
    )
