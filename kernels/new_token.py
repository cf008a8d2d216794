"""Device functions: a decode step's own token in attention: its rotated query heads, and its key and value, which the
cache keeps.

Knows one sequence and one key head; no grid and no other token.
Reference: kernels/reference/rope_store_kv.py
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partner_columns(offs, N_ROT: tl.constexpr):
    """The column that each one turns with."""
    HALF: tl.constexpr = N_ROT // 2
    return tl.where(offs < HALF, offs + HALF, tl.where(offs < N_ROT, offs - HALF, offs))


@triton.jit
def rotation(position_ptr, inv_freq_ptr, offs, N_ROT: tl.constexpr):
    """(sine with the sign that a column's partner has, cosine) of columns `offs`; each angle is one thread's work."""
    HALF: tl.constexpr = N_ROT // 2
    D: tl.constexpr = offs.shape[0]
    pair = tl.arange(0, D // 2)
    angle = tl.load(position_ptr).to(tl.float32) * tl.load(inv_freq_ptr + pair, mask=pair < HALF, other=0.0)
    both = tl.reshape(tl.join(tl.sin(angle), tl.cos(angle)), (D,))
    sine = tl.gather(both, offs % HALF * 2, 0)
    cosine = tl.gather(both, offs % HALF * 2 + 1, 0)
    return tl.where(offs < HALF, -sine, sine), cosine


@triton.jit
def norm_weights(norm_ptr, offs, partner, NORM: tl.constexpr):
    """(weights of columns, of their partners); with no norm, nothing of meaning."""
    weight = offs.to(tl.float32)
    partner_weight = weight
    if NORM:
        weight = tl.load(norm_ptr + offs)
        partner_weight = tl.load(norm_ptr + partner)
    return weight, partner_weight


@triton.jit
def turned(x, y, weights, rotation, eps, offs, N_ROT: tl.constexpr, NORM: tl.constexpr):
    """Heads x [G, D] normalised and rotated; y: their partners' columns."""
    D: tl.constexpr = x.shape[1]
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x = x * factor * weights[0][None, :]
        y = y * factor * weights[1][None, :]
    return tl.where((offs < N_ROT)[None, :], x * rotation[1][None, :] + y * rotation[0][None, :], x)


@triton.jit
def keep_key(x, offs, cache_ptr, scale_ptr, row, INT8: tl.constexpr):
    """`rope_store_kv.store_row` of one head's key, which every row of x [G, D] is; what the cache has, likewise.

    So each query head finds the key where it is itself: nothing passes between warps.
    """
    G: tl.constexpr = x.shape[0]
    D: tl.constexpr = x.shape[1]
    copy = tl.arange(0, G)
    place = cache_ptr + row * D + offs[None, :] + (copy * 0)[:, None]
    once = (copy == 0)[:, None] & (offs >= 0)[None, :]
    if INT8:
        scale = (tl.max(tl.abs(x), axis=1) / 127.0).to(tl.float16)
        inverse = 1.0 / tl.where(scale > 0.0, scale, 1.0).to(tl.float32)
        q = tl.minimum(tl.maximum(tl.floor(x * inverse[:, None] + 0.5), -127.0), 127.0)
        tl.store(place, q.to(tl.int8), mask=once)
        tl.store(scale_ptr + row + copy * 0, scale, mask=copy == 0)
        kept = q * scale.to(tl.float32)[:, None]
    else:
        stored = x.to(cache_ptr.dtype.element_ty)
        tl.store(place, stored, mask=once)
        kept = stored.to(tl.float32)
    return kept
