"""An attention layer's decode step between its projections, one token per sequence, over the paged cache
(flash-decoding), in one launch.

Each program rotates its query heads and walks a split of its sequence's context; the one whose split ends the context
also makes the new key and value, and writes them. The keys and values of a split's first tile, the rotation and the
norms' weights are there before the projection is; then all of the projection that a program needs is asked for at
once, and the new token is attended to first. Behind that, each tile is on its way while the one before it is
multiplied. The split that ends a sequence applies the output gate and quantises (`split_attention`).

A split covers a share of its sequence that the sequence's own length decides, whatever else is in the batch, and splits
are added up in order, so a sequence's result does not depend on its neighbours.
Bytes moved: k and v of the visible context once. Accumulation: f32 (bf16 operands, f16 with int8).
Reference:   kernels/reference/paged_decode.py
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.behind_loads import zero_behind_loads
from kernels.half_rows import half_arguments
from kernels.int8_numbers import int8_numbers
from kernels.launch import INTERPRETED, has_dp4a
from kernels.new_token import keep_key, norm_weights, partner_columns, rotation, turned
from kernels.quant_format import QuantActivation
from kernels.rope_store_kv import HeadShape, store_row
from kernels.split_attention import LOWEST, end_split, split_span

NUM_SPLITS = 104  # programs per sequence at long contexts, over all key heads: the next kernel wants some room, too
MANY_SEQS_SPLITS = 16  # where more sequences than FEW_SEQS fill the card
FEW_SEQS = 8  # that do not fill a card by themselves
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
def _tile(
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
def _add_tile(best, total, acc, q, tile, seen, INT8: tl.constexpr, NATIVE: tl.constexpr):
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


@triton.jit
def _paged_decode_kernel(
    projected_ptr, stride_m, positions_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr, eps, k_ptr, v_ptr, k_scale_ptr,
    v_scale_ptr, tables_ptr, stride_table, lens_ptr, partial_ptr, lse_ptr, count_ptr, scale, y_ptr, ys_ptr, ym_ptr,
    half_ptr, H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    INT8: tl.constexpr, EXACT: tl.constexpr, Q_STRIDE: tl.constexpr, N_ROT: tl.constexpr, NORM: tl.constexpr,
    GATED: tl.constexpr, FORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    kv_head = tl.program_id(0)
    m = tl.program_id(1)
    split = tl.program_id(2)  # the first of every sequence begin first; most have no other
    if PDL:
        gdc_launch_dependents()
    DOT: tl.constexpr = tl.float32 if EXACT else (tl.float16 if INT8 else tl.bfloat16)
    context_len = tl.load(lens_ptr + m)
    first, per_split = split_span(context_len, WINDOW, SPLITS, TILE, LEAST)
    begin = first + split * per_split
    if begin < context_len:
        new = context_len - 1
        end = tl.minimum(begin + per_split, new)  # of the tokens before the new one
        offs_d = tl.arange(0, D)
        copies = tl.zeros((BLOCK_G,), tl.int32)
        used = (tl.arange(0, BLOCK_G) < GROUP)[:, None] & (offs_d >= 0)[None, :]
        tables_ptr += m * stride_table
        k_ptr += kv_head * D
        v_ptr += kv_head * D
        k_scale_ptr += kv_head
        v_scale_ptr += kv_head
        token = begin + tl.arange(0, TILE)
        block = tl.load(tables_ptr + token // BLOCK_SIZE, mask=token < end, other=0)
        later = tl.load(tables_ptr + (token + TILE) // BLOCK_SIZE, mask=token + TILE < end, other=0)
        new_row = tl.load(tables_ptr + new // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + new % BLOCK_SIZE
        tile = _tile(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token, end, HK, D, BLOCK_SIZE, INT8)
        partner = partner_columns(offs_d, N_ROT)
        turn = rotation(positions_ptr + m, inv_freq_ptr, offs_d, N_ROT)
        q_weights = norm_weights(q_norm_ptr, offs_d, partner, NORM)
        k_weights = norm_weights(k_norm_ptr, offs_d, partner, NORM)
        if PDL:
            gdc_wait()
        projected_ptr += m * stride_m
        heads = projected_ptr + ((kv_head * GROUP + tl.arange(0, BLOCK_G)) * Q_STRIDE)[:, None]
        keys = projected_ptr + H * Q_STRIDE + kv_head * D + copies[:, None]
        q_columns = tl.load(heads + offs_d[None, :], mask=used, other=0.0)
        q_partners = tl.load(heads + partner[None, :], mask=used, other=0.0)
        k_columns = tl.load(keys + offs_d[None, :], mask=used, other=0.0)
        k_partners = tl.load(keys + partner[None, :], mask=used, other=0.0)
        new_v = tl.load(projected_ptr + H * Q_STRIDE + (HK + kv_head) * D + offs_d)
        zero = zero_behind_loads(NATIVE)
        q = turned(q_columns + zero, q_partners, q_weights, turn, eps, offs_d, N_ROT, NORM)
        q = (q * scale).to(DOT)
        best = tl.full((BLOCK_G,), LOWEST, tl.float32)
        total = tl.zeros((BLOCK_G,), tl.float32)
        acc = tl.zeros((BLOCK_G, D), tl.float32)
        if begin + per_split >= context_len:
            new_row = new_row * HK
            new_k = turned(k_columns + zero, k_partners, k_weights, turn, eps, offs_d, N_ROT, NORM)
            new_k = keep_key(new_k, offs_d, k_ptr, k_scale_ptr, new_row, INT8)
            new_v = store_row(new_v + zero, offs_d, v_ptr, v_scale_ptr, new_row, D, INT8)
            best = tl.sum(q.to(tl.float32) * new_k, axis=1)
            total += 1.0
            acc += new_v[None, :]
        for start in tl.range(begin, end, TILE):
            token = start + tl.arange(0, TILE)
            block = later
            later = tl.load(tables_ptr + (token + 2 * TILE) // BLOCK_SIZE, mask=token + 2 * TILE < end, other=0)
            following = _tile(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token + TILE, end, HK, D, BLOCK_SIZE, INT8)
            best, total, acc = _add_tile(best, total, acc, q, tile, token < end, INT8, NATIVE)
            tile = following
        end_split(best, total, acc, split, tl.cdiv(context_len - first, per_split), m, kv_head,
                  heads + D + offs_d[None, :], partial_ptr, lse_ptr, count_ptr, y_ptr, ys_ptr, ym_ptr, half_ptr, H, HK,
                  GROUP, SPLITS, GATED, FORM)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Keys that a program takes at once, and its warps; splits of a context at most, and tokens that each has at
    least."""

    num_tokens: int
    num_warps: int
    num_splits: int = 64
    least: int = 0


def attention_tile(head_dim: int, num_kv_heads: int, num_seqs: int) -> AttentionTile:
    """The tile that was fastest on an H200 (docs/performance.md)."""
    is_wide = head_dim > 128
    num_tokens = 32 if is_wide else 64
    if num_seqs > FEW_SEQS:
        programs = num_seqs * num_kv_heads  # where no context is split; from 128 on they fill the card
        least = min(1024, max(640 if programs >= 128 else 64, 5 * programs // 2 // 64 * 64))
        return AttentionTile(num_tokens, 4, MANY_SEQS_SPLITS, least)
    if num_seqs > FEW_SEQS // 2:
        return AttentionTile(num_tokens, 4, 16, 128 if is_wide else 192)
    return AttentionTile(num_tokens, 8, max(16, NUM_SPLITS // num_kv_heads), 128)


def paged_decode(
    projected: Tensor,
    positions: Tensor,
    kv: PagedKV,
    shape: HeadShape,
    inv_freq: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    workspace: tuple[Tensor, Tensor, Tensor],
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
    workspace:  ([n, num_q_heads, head_dim] f32, [n, num_q_heads] f32, n at least num_seqs * tile.num_splits;
                [num_seqs, num_kv_heads] int32 or more, zeros, and so afterwards)
    out:        [num_seqs, num_q_heads * head_dim] values, scales and sums written; or out.half alone,
                numbers beyond f16 as its largest, its factors one already
    scale:      factor of the scores; None: 1 / sqrt(head_dim)
    """
    num_seqs = projected.shape[0]
    tile = tile or attention_tile(shape.head_dim, shape.num_kv_heads, num_seqs)
    partial, lse, counts = workspace
    group = shape.num_q_heads // shape.num_kv_heads
    k_scale, v_scale = kv.scales or (kv.k, kv.v)
    q_norm, k_norm = norms or (inv_freq, inv_freq)
    half, _, _, form = half_arguments(out)
    _paged_decode_kernel[(shape.num_kv_heads, num_seqs, tile.num_splits)](
        projected, projected.stride(0), positions, inv_freq, q_norm, k_norm, eps, kv.k, kv.v, k_scale, v_scale,
        kv.block_tables, kv.block_tables.stride(0), kv.context_lens, partial, lse, counts,
        LOG2_E * (shape.head_dim**-0.5 if scale is None else scale), out.values, out.scales, out.sums, half,
        H=shape.num_q_heads, HK=shape.num_kv_heads, D=shape.head_dim, GROUP=group,
        BLOCK_G=max(16, triton.next_power_of_2(group)), TILE=tile.num_tokens, SPLITS=tile.num_splits, LEAST=tile.least,
        BLOCK_SIZE=kv.block_size, WINDOW=kv.window, INT8=kv.scales is not None, EXACT=INTERPRETED,
        Q_STRIDE=shape.q_stride, N_ROT=2 * inv_freq.numel(), NORM=norms is not None, GATED=shape.is_gated, FORM=form,
        NATIVE=has_dp4a(), PDL=pdl, num_warps=tile.num_warps, num_stages=1, **({"launch_pdl": True} if pdl else {}),
    )
