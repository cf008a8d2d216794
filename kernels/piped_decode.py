"""`paged_decode` of a sequence that is alone: a split's tiles pass through a ring in shared memory, and a second launch
adds up the splits. Many splits of one sequence are faster so than through registers and the split that ends last.

Bytes moved, accumulation, reference: as `paged_decode`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.new_token import LOWEST, begin_with_token, token_constants
from kernels.split_attention import add_tile, emit, load_tile, split_span


@triton.jit
def piped_decode_kernel(
    projected_ptr, stride_m, positions_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr, eps, k_ptr, v_ptr, k_scale_ptr,
    v_scale_ptr, tables_ptr, stride_table, lens_ptr, partial_ptr, lse_ptr, scale, H: tl.constexpr, HK: tl.constexpr,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, INT8: tl.constexpr, EXACT: tl.constexpr, Q_STRIDE: tl.constexpr,
    N_ROT: tl.constexpr, NORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """Arguments as `paged_decode`'s kernel has them."""
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
        new = context_len - 1
        end = tl.minimum(begin + per_split, new)  # of the tokens before the new one
        tables_ptr += m * stride_table
        k_ptr += kv_head * D
        v_ptr += kv_head * D
        k_scale_ptr += kv_head
        v_scale_ptr += kv_head
        new_row = tl.load(tables_ptr + new // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + new % BLOCK_SIZE
        constants = token_constants(positions_ptr + m, inv_freq_ptr, q_norm_ptr, k_norm_ptr, D, N_ROT, NORM)
        q = tl.zeros((BLOCK_G, D), DOT)
        best = tl.full((BLOCK_G,), LOWEST, tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        acc = tl.zeros((BLOCK_G, D), tl.float32)
        token = begin + tl.arange(0, TILE)
        block = tl.load(tables_ptr + token // BLOCK_SIZE, mask=token < end, other=0)
        for start in tl.range(begin, tl.maximum(end, begin + 1), TILE):
            token = start + tl.arange(0, TILE)
            later = token + TILE  # a tile ahead: the keys' addresses must not wait for it
            later_block = tl.load(tables_ptr + later // BLOCK_SIZE, mask=later < end, other=0)
            tile = load_tile(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token, end, HK, D, BLOCK_SIZE, INT8)
            if start == begin:  # the ring's first copies are on their way
                if PDL:
                    gdc_wait()
                q, best, total, acc = begin_with_token(
                    projected_ptr + m * stride_m, kv_head, constants, begin + per_split >= context_len, k_ptr, v_ptr,
                    k_scale_ptr, v_scale_ptr, new_row * HK, eps, scale, H, HK, D, GROUP, BLOCK_G, Q_STRIDE, N_ROT,
                    NORM, INT8, DOT, NATIVE)
            best, total, acc = add_tile(best, total, acc, q, tile, token < end, INT8, NATIVE)
            block = later_block
        offs_g = tl.arange(0, BLOCK_G)
        offs_d = tl.arange(0, D)
        used = (offs_g < GROUP)[:, None] & (offs_d >= 0)[None, :]
        place = (m * H + kv_head * GROUP + offs_g) * SPLITS + split
        tl.store(partial_ptr + place[:, None] * D + offs_d[None, :], acc / total[:, None], mask=used)
        tl.store(lse_ptr + place, best + tl.log2(total), mask=offs_g < GROUP)


@triton.jit
def combine_kernel(
    partial_ptr, lse_ptr, lens_ptr, gate_ptr, stride_gate, y_ptr, ys_ptr, ym_ptr, half_ptr, H: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, MOST: tl.constexpr,
    WINDOW: tl.constexpr, GATED: tl.constexpr, FORM: tl.constexpr, PDL: tl.constexpr,
):
    """BLOCK_D columns of a head, of parts that `piped_decode_kernel` has left."""
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
    emit(out, head * D + part * BLOCK_D, BLOCK_D, m, y_ptr, ys_ptr, ym_ptr, half_ptr, H * D, FORM)
