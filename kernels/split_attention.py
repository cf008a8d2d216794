"""Device functions: how a context is cut into splits, a split's tiles, and what becomes of one that is done.

A sequence's only split is its answer. Of several, each leaves its part, and the one that ends last adds them up in
their order, so that the sum does not depend on which that is. That is counted at an address that is zero before and
after; where a sequence has one split nothing is counted. Knows one sequence and one key head.
Reference: kernels/reference/paged_decode.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.activation import quantize_blocks
from kernels.half_rows import store_columns
from kernels.int8_numbers import int8_numbers
from kernels.new_token import LOWEST

AT_ONCE = tl.constexpr(4)  # splits whose parts are on their way before the first is added


@triton.jit
def split_span(context_len, WINDOW: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr):
    """(first visible token, tokens per split) of a sequence."""
    first = tl.maximum(context_len - WINDOW, 0) if WINDOW > 0 else context_len * 0
    per_split = tl.cdiv(tl.cdiv(context_len - first, SPLITS), TILE) * TILE
    return first, tl.maximum(per_split, LEAST)


@triton.jit
def _sum_of_splits(partial_ptr, lse_ptr, place, num, real, D: tl.constexpr):
    """The answers [G, D] of heads whose parts stand from place [G] on."""
    G: tl.constexpr = place.shape[0]
    offs_d = tl.arange(0, D)
    best = tl.full((G,), LOWEST, tl.float32)
    total = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    for first in tl.range(0, num, AT_ONCE):
        lse = ()
        parts = ()
        for i in tl.static_range(AT_ONCE):
            here = place + first + i
            is_there = real & (first + i < num)
            lse = lse + (tl.load(lse_ptr + here, mask=is_there, other=LOWEST),)
            parts = parts + (tl.load(partial_ptr + here[:, None] * D + offs_d[None, :], mask=is_there[:, None],
                                     other=0.0),)
        new_best = best
        for i in tl.static_range(AT_ONCE):
            new_best = tl.maximum(new_best, lse[i])
        shrink = tl.exp2(best - new_best)
        total *= shrink
        acc *= shrink[:, None]
        for i in tl.static_range(AT_ONCE):
            weight = tl.exp2(lse[i] - new_best)
            total += weight
            acc += parts[i] * weight[:, None]
        best = new_best
    return acc / total[:, None]


@triton.jit
def emit_heads(
    x, first_column, num_columns, m, y_ptr, ys_ptr, ym_ptr, half_ptr, COLS: tl.constexpr, FORM: tl.constexpr
):
    """So many columns of token m's row, x [N]: FORM -1: as integers, else as f16 (half_rows.py), 1: wide."""
    N: tl.constexpr = x.shape[0]
    if FORM >= 0:
        store_columns(x, first_column, m, half_ptr, tl.arange(0, N) < num_columns, FORM == 1)
    else:
        quantize_blocks(x, first_column // 16, y_ptr + m * 2 * COLS, ys_ptr + m * (COLS // 16),
                        ym_ptr + m * (COLS // 16), COLS, N // 16, tl.arange(0, N // 16) < num_columns // 16)


@triton.jit
def end_split(
    best, total, acc, split, num, m, kv_head, gates, partial_ptr, lse_ptr, count_ptr, y_ptr, ys_ptr, ym_ptr, half_ptr,
    H: tl.constexpr, HK: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr,
):
    """Split number `split` of `num`: largest score [G], sum of weights [G], weighted sum of values [G, D]; gates:
    addresses [G, D] of the heads' output gates."""
    G: tl.constexpr = acc.shape[0]
    D: tl.constexpr = acc.shape[1]
    offs_g = tl.arange(0, G)
    real = offs_g < GROUP
    used = real[:, None] & (tl.arange(0, D) >= 0)[None, :]
    out = acc / total[:, None]
    is_last = num == 1
    if num > 1:
        place = (m * H + kv_head * GROUP + offs_g) * SPLITS
        tl.store(partial_ptr + (place + split)[:, None] * D + tl.arange(0, D)[None, :], out, mask=used)
        tl.store(lse_ptr + place + split, best + tl.log2(total), mask=real)
        tl.debug_barrier()  # all threads' parts before one thread's count
        count_ptr += m * HK + kv_head
        is_last = tl.atomic_add(count_ptr, 1, sem="acq_rel") == num - 1
        if is_last:
            out = _sum_of_splits(partial_ptr, lse_ptr, place, num, real, D)
            tl.store(count_ptr, 0)
    if is_last:
        if GATED:
            out = out / (1.0 + tl.exp(-tl.load(gates, mask=used, other=0.0)))
        emit_heads(tl.reshape(out, (G * D,)), kv_head * GROUP * D, GROUP * D, m, y_ptr, ys_ptr, ym_ptr, half_ptr, H * D,
              FORM)


@triton.jit
def load_tile(
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token, end, HK: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, INT8: tl.constexpr,
):
    """(keys [TILE, D], values, their scales [TILE] each; those without scales are zeros) of tokens before `end`."""
    offs_d = tl.arange(0, D)
    seen = token < end
    row = (block.to(tl.int64) * BLOCK_SIZE + token % BLOCK_SIZE) * HK
    k = tl.load(k_ptr + row[:, None] * D + offs_d[None, :], mask=seen[:, None], other=0.0)
    v = tl.load(v_ptr + row[:, None] * D + offs_d[None, :], mask=seen[:, None], other=0.0)
    k_scale = tl.zeros(token.shape, tl.float16)
    v_scale = k_scale
    if INT8:
        k_scale = tl.load(k_scale_ptr + row, mask=seen, other=0.0)
        v_scale = tl.load(v_scale_ptr + row, mask=seen, other=0.0)
    return k, v, k_scale, v_scale


@triton.jit
def add_tile(best, total, acc, q, tile, seen, INT8: tl.constexpr, NATIVE: tl.constexpr):
    """(largest score [G], sum of weights [G], weighted sum of values [G, D]) with the tile's tokens, scores as powers
    of two."""
    k, v, k_scale, v_scale = tile
    scores = tl.dot(q, tl.trans(int8_numbers(k, q.dtype, NATIVE)))
    if INT8:
        scores *= k_scale.to(tl.float32)[None, :]
    scores = tl.where(seen[None, :], scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    p = tl.exp2(scores - new_best[:, None])
    shrink = tl.exp2(best - new_best)
    total = total * shrink + tl.sum(p, axis=1)
    if INT8:
        p *= v_scale.to(tl.float32)[None, :]
    acc = acc * shrink[:, None] + tl.dot(p.to(q.dtype), int8_numbers(v, q.dtype, NATIVE))
    return new_best, total, acc
