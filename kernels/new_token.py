"""Device functions: a decode step's own token in attention: its rotated query heads, its key and value, which the cache
keeps, and the softmax that begins with it.

Knows one sequence and one key head; no grid and no other token.
Reference: kernels/reference/rope_store_kv.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.behind_loads import zero_behind_loads
from kernels.rope_store_kv import store_row

LOWEST = tl.constexpr(-1e30)  # of a score: no token seen yet


@triton.jit
def _partners(offs, N_ROT: tl.constexpr):
    """The column that each one turns with."""
    HALF: tl.constexpr = N_ROT // 2
    return tl.where(offs < HALF, offs + HALF, tl.where(offs < N_ROT, offs - HALF, offs))


@triton.jit
def _rotation(position_ptr, inv_freq_ptr, offs, N_ROT: tl.constexpr):
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
def _norm_weights(norm_ptr, offs, partner, NORM: tl.constexpr):
    """(weights of columns, of their partners); with no norm, nothing of meaning."""
    weight = offs.to(tl.float32)
    partner_weight = weight
    if NORM:
        weight = tl.load(norm_ptr + offs)
        partner_weight = tl.load(norm_ptr + partner)
    return weight, partner_weight


@triton.jit
def _turned(x, y, weights, rotation, eps, offs, N_ROT: tl.constexpr, NORM: tl.constexpr):
    """Heads x [G, D] normalised and rotated; y: their partners' columns."""
    D: tl.constexpr = x.shape[1]
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x = x * factor * weights[0][None, :]
        y = y * factor * weights[1][None, :]
    return tl.where((offs < N_ROT)[None, :], x * rotation[1][None, :] + y * rotation[0][None, :], x)


@triton.jit
def _keep_key(x, offs, cache_ptr, scale_ptr, row, INT8: tl.constexpr):
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


@triton.jit
def token_constants(
    position_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr, D: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr
):
    """What `begin_with_token` needs that no kernel of the step makes."""
    offs_d = tl.arange(0, D)
    partner = _partners(offs_d, N_ROT)
    turn = _rotation(position_ptr, inv_freq_ptr, offs_d, N_ROT)
    return (turn, _norm_weights(q_norm_ptr, offs_d, partner, NORM), _norm_weights(k_norm_ptr, offs_d, partner, NORM))


@triton.jit
def begin_with_token(
    projected_ptr, kv_head, constants, is_here, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, new_row, eps, scale,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr,
    Q_STRIDE: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr, INT8: tl.constexpr, DOT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """(heads to multiply with keys, [BLOCK_G, D] in type DOT; largest score [BLOCK_G], sum of weights [BLOCK_G],
    weighted sum of values [BLOCK_G, D]: of the new token if it is this program's, else of none).

    All that depends on the projection is asked for at once. new_row: of the caches, which get key and value.
    """
    turn, q_weights, k_weights = constants
    offs_d = tl.arange(0, D)
    partner = _partners(offs_d, N_ROT)
    offs_g = tl.arange(0, BLOCK_G)
    used = (offs_g < GROUP)[:, None] & (offs_d >= 0)[None, :]
    heads = projected_ptr + ((kv_head * GROUP + offs_g) * Q_STRIDE)[:, None]
    keys = projected_ptr + H * Q_STRIDE + kv_head * D + (offs_g * 0)[:, None]
    q_columns = tl.load(heads + offs_d[None, :], mask=used, other=0.0)
    q_partners = tl.load(heads + partner[None, :], mask=used, other=0.0)
    k_columns = tl.load(keys + offs_d[None, :], mask=used, other=0.0)
    k_partners = tl.load(keys + partner[None, :], mask=used, other=0.0)
    new_v = tl.load(projected_ptr + H * Q_STRIDE + (HK + kv_head) * D + offs_d)
    zero = zero_behind_loads(NATIVE)
    q = _turned(q_columns + zero, q_partners, q_weights, turn, eps, offs_d, N_ROT, NORM)
    q = (q * scale).to(DOT)
    best = tl.full((BLOCK_G,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, D), tl.float32)
    if is_here:
        new_k = _turned(k_columns + zero, k_partners, k_weights, turn, eps, offs_d, N_ROT, NORM)
        new_k = _keep_key(new_k, offs_d, k_ptr, k_scale_ptr, new_row, INT8)
        new_v = store_row(new_v + zero, offs_d, v_ptr, v_scale_ptr, new_row, D, INT8)
        best = tl.sum(q.to(tl.float32) * new_k, axis=1)
        total += 1.0
        acc += new_v[None, :]
    return q, best, total, acc
