"""An attention layer's decode step between its projections, one token per sequence, over the paged cache
(flash-decoding).

Each program rotates its query heads and walks a split of its sequence's context; the one whose split ends the context
also makes the new key and value, and writes them. Keys and values of a split's first tiles are asked for before the
projection is there: only the new token's depend on it. A sequence of one split is done then, the splits of others are
combined. Both ends apply the output gate and quantise.

A split covers a share of its sequence that the sequence's own length decides, whatever else is in the batch, and splits
are combined in order, so a sequence's result does not depend on its neighbours.
Bytes moved: k and v of the visible context once. Accumulation: f32 (bf16 operands, f16 with int8).
Reference:   kernels/reference/paged_decode.py
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import quantize_blocks
from kernels.half_rows import half_arguments, store_columns
from kernels.int8_numbers import int8_numbers
from kernels.launch import INTERPRETED, has_dp4a, has_large_shared_memory
from kernels.quant_format import QuantActivation
from kernels.rope_store_kv import HeadShape, rotated_heads, store_row

NUM_SPLITS = 104  # programs per sequence at long contexts, over all key heads: the next kernel wants some room, too
MANY_SEQS_SPLITS = 16  # where more sequences than FEW_SEQS fill the card
FEW_SEQS = 8  # that do not fill a card by themselves
LOWEST = tl.constexpr(-1e30)  # of a score: no token seen yet
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer's cache and where each sequence's blocks are.

    k, v:          [num_slots, num_kv_heads, head_dim] bf16 or int8
    scales:        with int8: (k, v) each [num_slots, num_kv_heads] f16
    block_tables:  [num_seqs, max_blocks] int32
    context_lens:  [num_seqs] int32, the new token counted
    window:        tokens a query sees, itself counted; 0: all
    """

    k: Tensor
    v: Tensor
    scales: tuple[Tensor, Tensor] | None
    block_tables: Tensor
    context_lens: Tensor
    block_size: int
    window: int = 0


@triton.jit
def _span(context_len, WINDOW: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr):
    """(first visible token, tokens per split) of a sequence."""
    first = tl.maximum(context_len - WINDOW, 0) if WINDOW > 0 else context_len * 0
    per_split = tl.cdiv(tl.cdiv(context_len - first, SPLITS), TILE) * TILE
    return first, tl.maximum(per_split, LEAST)


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
        seen = token < end
        later = token + TILE  # a tile ahead: the keys' addresses must not wait for it
        later_block = tl.load(tables_ptr + later // BLOCK_SIZE, mask=later < end, other=0)
        row = (block.to(tl.int64) * BLOCK_SIZE + token % BLOCK_SIZE) * HK
        k = tl.load(k_ptr + row[:, None] * D + offs_d[None, :], mask=seen[:, None], other=0.0)
        v = tl.load(v_ptr + row[:, None] * D + offs_d[None, :], mask=seen[:, None], other=0.0)
        if start == begin:
            if PDL:
                gdc_wait()
            position = tl.load(position_ptr).to(tl.float32)
            rotated = rotated_heads(heads_ptr, Q_STRIDE, heads, offs_d, position, inv_freq_ptr, q_norm_ptr, eps, used,
                                    D, N_ROT, NORM)
            q = (rotated * scale).to(DOT)
        scores = tl.dot(q, tl.trans(int8_numbers(k, DOT, NATIVE)))
        if INT8:
            scores *= tl.load(k_scale_ptr + row, mask=seen, other=0.0).to(tl.float32)[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(p, axis=1)
        if INT8:
            p *= tl.load(v_scale_ptr + row, mask=seen, other=0.0).to(tl.float32)[None, :]
        acc = acc * shrink[:, None] + tl.dot(p.to(DOT), int8_numbers(v, DOT, NATIVE))
        best = new_best
        block = later_block
    return best, total, acc, q


@triton.jit
def _emit(
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
def _paged_decode_kernel(
    projected_ptr, stride_m, positions_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr, eps, k_ptr, v_ptr, k_scale_ptr,
    v_scale_ptr, tables_ptr, stride_table, lens_ptr, partial_ptr, lse_ptr, scale, y_ptr, ys_ptr, ym_ptr, half_ptr,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, INT8: tl.constexpr,
    EXACT: tl.constexpr, Q_STRIDE: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    m = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
    DOT: tl.constexpr = tl.float32 if EXACT else (tl.float16 if INT8 else tl.bfloat16)
    context_len = tl.load(lens_ptr + m)
    first, per_split = _span(context_len, WINDOW, SPLITS, TILE, LEAST)
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
        if LEAST > 0 and per_split >= context_len - first:
            if GATED:
                gate = tl.load(projected_ptr + (head * 2 * D + D)[:, None] + offs_d[None, :], mask=used, other=0.0)
                out = out / (1.0 + tl.exp(-gate))
            _emit(tl.reshape(out, (BLOCK_G * D,)), kv_head * GROUP * D, GROUP * D, m, y_ptr, ys_ptr, ym_ptr, half_ptr,
                  H * D, FORM)
        else:
            place = (m * H + head) * SPLITS + split
            tl.store(partial_ptr + place[:, None] * D + offs_d[None, :], out, mask=used)
            tl.store(lse_ptr + place, best + tl.log2(total), mask=offs_g < GROUP)


@triton.jit
def _combine_kernel(
    partial_ptr, lse_ptr, lens_ptr, gate_ptr, stride_gate, y_ptr, ys_ptr, ym_ptr, half_ptr, H: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr,
    MOST: tl.constexpr, WINDOW: tl.constexpr, GATED: tl.constexpr, FORM: tl.constexpr, PDL: tl.constexpr,
):
    head = tl.program_id(0)
    part = tl.program_id(1)
    m = tl.program_id(2)
    if PDL:
        gdc_launch_dependents()
    context_len = tl.load(lens_ptr + m)
    first, per_split = _span(context_len, WINDOW, SPLITS, TILE, LEAST)
    if PDL:
        gdc_wait()
    if LEAST == 0 or per_split < context_len - first:
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
        _emit(out, head * D + part * BLOCK_D, BLOCK_D, m, y_ptr, ys_ptr, ym_ptr, half_ptr, H * D, FORM)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Keys that a program takes at once, and how; splits of a context at most, and tokens that each has at least."""

    num_tokens: int
    num_warps: int
    num_stages: int
    num_splits: int = 64
    least: int = 0


def attention_tile(head_dim: int, num_kv_heads: int, num_seqs: int, is_roomy: bool) -> AttentionTile:
    """The tile that was fastest on an H200 (docs/performance.md); is_roomy: `has_large_shared_memory`."""
    is_wide = head_dim > 128
    if num_seqs > FEW_SEQS:
        programs = num_seqs * num_kv_heads  # where no context is split; from 128 on they fill the card
        least = min(1024, max(640 if programs >= 128 else 64, 5 * programs // 2 // 64 * 64))
        return AttentionTile(32 if is_wide else 64, 4, 4 if is_wide and is_roomy else 3, MANY_SEQS_SPLITS, least)
    num_splits = max(16, NUM_SPLITS // num_kv_heads)
    if not is_roomy:
        return AttentionTile(32 if is_wide else 64, 4, 3, num_splits)
    if num_seqs > FEW_SEQS // 2:  # little shared memory, so that the kernel behind finds room to begin
        return AttentionTile(32, 4, 2, 16, least=128) if is_wide else AttentionTile(64, 8, 1, 16, least=192)
    return AttentionTile(64 if is_wide else 128, 8, 3, num_splits)


def paged_decode(
    projected: Tensor,
    positions: Tensor,
    kv: PagedKV,
    shape: HeadShape,
    inv_freq: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    workspace: tuple[Tensor, Tensor],
    out: QuantActivation,
    eps: float,
    tile: AttentionTile | None = None,
    pdl: bool = False,
    scale: float | None = None,
) -> None:
    """Norm and rope of q and k, the new k and v into the cache, softmax(scale q k^T) v per query head, times
    sigmoid(gate) where the heads are gated, quantised.

    projected:  [num_seqs, shape.row] f32; head_dim a power of two
    positions:  [num_seqs] int64; the new token's row of the cache is that of index context_len - 1 in its block table
    kv:         the new rows are written
    inv_freq:   [n_rot / 2] f32; norms: ([head_dim] f32 for q, the same for k), or None
    workspace:  ([n, num_q_heads, head_dim] f32, [n, num_q_heads] f32), n at least num_seqs * tile.num_splits
    out:        [num_seqs, num_q_heads * head_dim] values, scales and sums written; or out.half alone,
                numbers beyond f16 as its largest, its factors one already
    scale:      factor of the scores; None: 1 / sqrt(head_dim)
    """
    num_seqs = projected.shape[0]
    is_roomy = has_large_shared_memory(projected)
    tile = tile or attention_tile(shape.head_dim, shape.num_kv_heads, num_seqs, is_roomy)
    partial, lse = workspace
    group = shape.num_q_heads // shape.num_kv_heads
    k_scale, v_scale = kv.scales or (kv.k, kv.v)
    q_norm, k_norm = norms or (inv_freq, inv_freq)
    half, _, _, form = half_arguments(out)
    options = {"launch_pdl": True} if pdl else {}
    common = {"H": shape.num_q_heads, "D": shape.head_dim, "TILE": tile.num_tokens, "SPLITS": tile.num_splits,
              "LEAST": tile.least, "WINDOW": kv.window, "GATED": shape.is_gated,
              "FORM": form, "PDL": pdl, **options}
    _paged_decode_kernel[(tile.num_splits, shape.num_kv_heads, num_seqs)](
        projected, projected.stride(0), positions, inv_freq, q_norm, k_norm, eps, kv.k, kv.v, k_scale, v_scale,
        kv.block_tables, kv.block_tables.stride(0), kv.context_lens, partial, lse,
        LOG2_E * (shape.head_dim**-0.5 if scale is None else scale), out.values, out.scales, out.sums, half,
        HK=shape.num_kv_heads, GROUP=group, BLOCK_G=max(16, triton.next_power_of_2(group)), BLOCK_SIZE=kv.block_size,
        INT8=kv.scales is not None, EXACT=INTERPRETED, Q_STRIDE=shape.q_stride, N_ROT=2 * inv_freq.numel(),
        NORM=norms is not None, NATIVE=has_dp4a(), num_warps=tile.num_warps, num_stages=tile.num_stages, **common,
    )
    block_d = min(64, shape.head_dim)
    _combine_kernel[(shape.num_q_heads, shape.head_dim // block_d, num_seqs)](
        partial, lse, kv.context_lens, projected, projected.stride(0), out.values, out.scales, out.sums, half,
        BLOCK_D=block_d, MOST=triton.next_power_of_2(tile.num_splits), num_warps=4, **common,
    )
