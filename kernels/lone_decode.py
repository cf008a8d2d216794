"""`paged_decode` of one sequence alone, in two launches: a long context is shared out among the whole card, and so is
the sum of its splits.

Each program rotates its query heads and walks a split of the context; the one whose split ends the context also makes
the new key and value, and writes them. Keys and values of a split's first tiles are asked for before the projection is
there: only the new token's depend on it. Bytes moved, accumulation: as `paged_decode`.
Reference:   kernels/reference/paged_decode.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.rope_store_kv import rotated_heads, store_row
from kernels.split_attention import LOWEST, add_tile, emit_heads, load_tile, split_span


@triton.jit
def _walk(
    tables_ptr, begin, end, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, heads_ptr, heads, used, position_ptr, inv_freq_ptr,
    q_norm_ptr, eps, scale, Q_STRIDE: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, INT8: tl.constexpr, DOT: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """Attention of query heads to the tokens from begin to end: (largest score [G], sum of weights [G], weighted sum of
    values [G, D], the rotated heads [G, D]), scores as powers of two.

    Waits for the kernel ahead when the first keys and values are on their way; so it takes one round at least.
    """
    G: tl.constexpr = heads.shape[0]
    offs_d = tl.arange(0, D)
    best = tl.full((G,), LOWEST, tl.float32)
    total = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    q = tl.zeros((G, D), DOT)
    token = begin + tl.arange(0, TILE)
    block = tl.load(tables_ptr + token // BLOCK_SIZE, mask=token < end, other=0)
    for start in tl.range(begin, tl.maximum(end, begin + 1), TILE):
        token = start + tl.arange(0, TILE)
        later = token + TILE  # a tile ahead: the keys' addresses must not wait for it
        later_block = tl.load(tables_ptr + later // BLOCK_SIZE, mask=later < end, other=0)
        tile = load_tile(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token, end, HK, D, BLOCK_SIZE, INT8)
        if start == begin:
            if PDL:
                gdc_wait()
            position = tl.load(position_ptr).to(tl.float32)
            rotated = rotated_heads(heads_ptr, Q_STRIDE, heads, offs_d, position, inv_freq_ptr, q_norm_ptr, eps, used,
                                    D, N_ROT, NORM)
            q = (rotated * scale).to(DOT)
        best, total, acc = add_tile(best, total, acc, q, tile, token < end, INT8, NATIVE)
        block = later_block
    return best, total, acc, q


@triton.jit
def lone_split_kernel(
    projected_ptr, stride_m, positions_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr, eps, k_ptr, v_ptr, k_scale_ptr,
    v_scale_ptr, tables_ptr, stride_table, lens_ptr, partial_ptr, lse_ptr, scale,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, INT8: tl.constexpr,
    EXACT: tl.constexpr, Q_STRIDE: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr, NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A split's part: answers and logarithms of their weights."""
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    m = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
    DOT: tl.constexpr = tl.float32 if EXACT else (tl.float16 if INT8 else tl.bfloat16)
    context_len = tl.load(lens_ptr + m)
    first, per_split = split_span(context_len, WINDOW, SPLITS, TILE, 0)
    begin = first + split * per_split
    if begin < context_len:
        end = tl.minimum(begin + per_split, context_len)
        offs_g = tl.arange(0, BLOCK_G)
        offs_d = tl.arange(0, D)
        head = kv_head * GROUP + offs_g
        projected_ptr += m * stride_m
        tables_ptr += m * stride_table
        used = (offs_g < GROUP)[:, None] & (offs_d >= 0)[None, :]
        best, total, acc, q = _walk(
            tables_ptr, begin, tl.minimum(end, context_len - 1), k_ptr + kv_head * D, v_ptr + kv_head * D,
            k_scale_ptr + kv_head, v_scale_ptr + kv_head, projected_ptr, head, used, positions_ptr + m, inv_freq_ptr,
            q_norm_ptr, eps, scale, Q_STRIDE, HK, D, TILE, BLOCK_SIZE, INT8, DOT, N_ROT, NORM, NATIVE, PDL)
        if end == context_len:
            new = context_len - 1
            new_block = tl.load(tables_ptr + new // BLOCK_SIZE).to(tl.int64)
            new_row = (new_block * BLOCK_SIZE + new % BLOCK_SIZE) * HK + kv_head
            k_base = projected_ptr + H * Q_STRIDE + kv_head * D
            position = tl.load(positions_ptr + m).to(tl.float32)
            new_k = rotated_heads(k_base, 0, tl.arange(0, 1), offs_d, position, inv_freq_ptr, k_norm_ptr, eps,
                                  (offs_d >= 0)[None, :], D, N_ROT, NORM)
            new_k = store_row(tl.sum(new_k, axis=0), offs_d, k_ptr, k_scale_ptr, new_row, D, INT8)
            new_v = store_row(tl.load(k_base + HK * D + offs_d), offs_d, v_ptr, v_scale_ptr, new_row, D, INT8)
            score = tl.sum(q.to(tl.float32) * new_k[None, :], axis=1)
            new_best = tl.maximum(best, score)
            weight = tl.exp2(score - new_best)
            shrink = tl.exp2(best - new_best)
            total = total * shrink + weight
            acc = acc * shrink[:, None] + weight[:, None] * new_v[None, :]
            best = new_best
        out = acc / total[:, None]
        place = (m * H + head) * SPLITS + split
        tl.store(partial_ptr + place[:, None] * D + offs_d[None, :], out, mask=used)
        tl.store(lse_ptr + place, best + tl.log2(total), mask=offs_g < GROUP)


@triton.jit
def lone_combine_kernel(
    partial_ptr, lse_ptr, lens_ptr, gate_ptr, stride_gate, y_ptr, ys_ptr, ym_ptr, half_ptr, H: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, MOST: tl.constexpr,
    WINDOW: tl.constexpr, GATED: tl.constexpr, FORM: tl.constexpr, PDL: tl.constexpr,
):
    """Some columns of a head: splits added up, the output gate, quantised."""
    head = tl.program_id(0)
    part = tl.program_id(1)
    m = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
    context_len = tl.load(lens_ptr + m)
    first, per_split = split_span(context_len, WINDOW, SPLITS, TILE, 0)
    if PDL:
        gdc_wait()
    split = tl.arange(0, MOST)
    offs_d = part * BLOCK_D + tl.arange(0, BLOCK_D)
    used = split * per_split < context_len - first
    place = (m * H + head) * SPLITS + split
    lse = tl.load(lse_ptr + place, mask=used, other=float("-inf"))
    weight = tl.exp2(lse - tl.max(lse, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    partial = tl.load(partial_ptr + place[:, None] * D + offs_d[None, :], mask=used[:, None], other=0.0)
    out = tl.sum(partial * weight[:, None], axis=0)
    if GATED:
        gate = tl.load(gate_ptr + m * stride_gate + head * 2 * D + D + offs_d)
        out = out / (1.0 + tl.exp(-gate))
    emit_heads(out, head * D + part * BLOCK_D, BLOCK_D, m, y_ptr, ys_ptr, ym_ptr, half_ptr, H * D, FORM)
