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

from kernels.half_rows import half_arguments
from kernels.launch import INTERPRETED, has_dp4a, has_large_shared_memory
from kernels.lone_decode import lone_combine_kernel, lone_split_kernel
from kernels.new_token import begin_with_token, token_constants
from kernels.quant_format import QuantActivation
from kernels.rope_store_kv import HeadShape
from kernels.split_attention import add_tile, end_split, load_tile, split_span

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
        tables_ptr += m * stride_table
        k_ptr += kv_head * D
        v_ptr += kv_head * D
        k_scale_ptr += kv_head
        v_scale_ptr += kv_head
        token = begin + tl.arange(0, TILE)
        block = tl.load(tables_ptr + token // BLOCK_SIZE, mask=token < end, other=0)
        later = tl.load(tables_ptr + (token + TILE) // BLOCK_SIZE, mask=token + TILE < end, other=0)
        new_row = tl.load(tables_ptr + new // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + new % BLOCK_SIZE
        tile = load_tile(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token, end, HK, D, BLOCK_SIZE, INT8)
        constants = token_constants(positions_ptr + m, inv_freq_ptr, q_norm_ptr, k_norm_ptr, D, N_ROT, NORM)
        if PDL:
            gdc_wait()
        projected_ptr += m * stride_m
        q, best, total, acc = begin_with_token(
            projected_ptr, kv_head, constants, begin + per_split >= context_len, k_ptr, v_ptr, k_scale_ptr,
            v_scale_ptr, new_row * HK, eps, scale, H, HK, D, GROUP, BLOCK_G, Q_STRIDE, N_ROT, NORM, INT8, DOT, NATIVE)
        for start in tl.range(begin, end, TILE):
            token = start + tl.arange(0, TILE)
            block = later
            later = tl.load(tables_ptr + (token + 2 * TILE) // BLOCK_SIZE, mask=token + 2 * TILE < end, other=0)
            following = load_tile(k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, token + TILE, end, HK, D, BLOCK_SIZE,
                                  INT8)
            best, total, acc = add_tile(best, total, acc, q, tile, token < end, INT8, NATIVE)
            tile = following
        head = kv_head * GROUP + tl.arange(0, BLOCK_G)
        gates = projected_ptr + (head * Q_STRIDE + D)[:, None] + tl.arange(0, D)[None, :]
        end_split(best, total, acc, split, tl.cdiv(context_len - first, per_split), m, kv_head, gates, partial_ptr,
                  lse_ptr, count_ptr, y_ptr, ys_ptr, ym_ptr, half_ptr, H, HK, GROUP, SPLITS, GATED, FORM)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Keys that a program takes at once, and its warps; splits of a context at most, and tokens that each has at
    least. num_stages: tiles on their way where splits are added up by a launch of its own (`lone_decode`, with no
    least); 0: by the split that ends last."""

    num_tokens: int
    num_warps: int
    num_splits: int = 64
    least: int = 0
    num_stages: int = 0


def attention_tile(head_dim: int, num_kv_heads: int, num_seqs: int, is_int8: bool, is_roomy: bool) -> AttentionTile:
    """The tile that was fastest on an H200 (docs/performance.md); is_roomy: `has_large_shared_memory`."""
    is_wide = head_dim > 128
    num_tokens = 32 if is_wide else 64
    num_warps = 8 if is_int8 else 4  # with four, a tile of int8 numbers on its way beside another's f16 is spilled
    if num_seqs > FEW_SEQS:
        programs = num_seqs * num_kv_heads  # where no context is split; from 128 on they fill the card
        least = min(1024, max(640 if programs >= 128 else 64, 5 * programs // 2 // 64 * 64))
        return AttentionTile(num_tokens, num_warps, MANY_SEQS_SPLITS, least)
    if num_seqs > FEW_SEQS // 2:
        return AttentionTile(num_tokens, num_warps, 16, 128 if is_wide else 192)
    num_splits = max(16, NUM_SPLITS // num_kv_heads)
    if num_seqs > 1:
        return AttentionTile(num_tokens, num_warps, num_splits, 128)
    return AttentionTile(num_tokens * (1 + is_roomy), 8 if is_roomy else 4, num_splits, num_stages=3)


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
    is_roomy = has_large_shared_memory(projected)
    is_int8 = kv.scales is not None
    tile = tile or attention_tile(shape.head_dim, shape.num_kv_heads, num_seqs, is_int8, is_roomy)
    partial, lse, counts = workspace
    group = shape.num_q_heads // shape.num_kv_heads
    k_scale, v_scale = kv.scales or (kv.k, kv.v)
    q_norm, k_norm = norms or (inv_freq, inv_freq)
    half, _, _, form = half_arguments(out)
    factor = LOG2_E * (shape.head_dim**-0.5 if scale is None else scale)
    inputs = (projected, projected.stride(0), positions, inv_freq, q_norm, k_norm, eps, kv.k, kv.v, k_scale, v_scale,
              kv.block_tables, kv.block_tables.stride(0), kv.context_lens, partial, lse)
    outputs = (out.values, out.scales, out.sums, half)
    common = {"H": shape.num_q_heads, "D": shape.head_dim, "TILE": tile.num_tokens, "SPLITS": tile.num_splits,
              "WINDOW": kv.window, "PDL": pdl, **({"launch_pdl": True} if pdl else {})}
    answer = {"GATED": shape.is_gated, "FORM": form}
    walk = {"HK": shape.num_kv_heads, "GROUP": group, "BLOCK_G": max(16, triton.next_power_of_2(group)),
            "BLOCK_SIZE": kv.block_size, "INT8": is_int8, "EXACT": INTERPRETED,
            "Q_STRIDE": shape.q_stride, "N_ROT": 2 * inv_freq.numel(), "NORM": norms is not None,
            "NATIVE": has_dp4a(), "num_warps": tile.num_warps}
    if tile.num_stages == 0:
        _paged_decode_kernel[(shape.num_kv_heads, num_seqs, tile.num_splits)](
            *inputs, counts, factor, *outputs, LEAST=tile.least, num_stages=1, **walk, **answer, **common)
        return
    lone_split_kernel[(tile.num_splits, shape.num_kv_heads, num_seqs)](
        *inputs, factor, num_stages=tile.num_stages, **walk, **common)
    block_d = min(64, shape.head_dim)
    lone_combine_kernel[(shape.num_q_heads, shape.head_dim // block_d, num_seqs)](
        partial, lse, kv.context_lens, projected, projected.stride(0), *outputs, BLOCK_D=block_d,
        MOST=triton.next_power_of_2(tile.num_splits), num_warps=4, **answer, **common)
