"""Attention of prompts' chunks over the paged cache, in which the chunks' own keys and values lie already.

A program takes 128 queries of one head and walks over the keys that they see with a running softmax; keys that all of
them see need no mask. Causal, with any prefix, within a window where there is one. The output gate is applied here.
Bytes moved: k and v once per 128 queries and head (mostly from L2). Accumulation: f32 (bf16 operands, f16 beside int8).
Reference:   kernels/reference/paged_prefill.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.int8_numbers import int8_numbers
from kernels.launch import INTERPRETED, has_dp4a, has_large_shared_memory
from kernels.rope_store_kv import HeadShape
from kernels.spans import TILE, Spans

LOG2_E = 1.4426950408889634


@triton.jit
def _power_of_two(x, NATIVE: tl.constexpr):
    """2^x; what is smaller than normal numbers may be 0."""
    if NATIVE:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.exp2(x)


@triton.jit
def _kv_rows(table_ptr, place, BLOCK_SIZE: tl.constexpr, HK: tl.constexpr):
    """Where the keys of positions `place` lie, in rows of one head."""
    block = tl.load(table_ptr + place // BLOCK_SIZE)
    return (block.to(tl.int64) * BLOCK_SIZE + place % BLOCK_SIZE) * HK


@triton.jit
def _walk(
    q, acc, total, best, begin, end, position, table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale, last,
    D: tl.constexpr, HK: tl.constexpr, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    INT8: tl.constexpr, NATIVE: tl.constexpr, MASKED: tl.constexpr,
):
    """Keys [begin, end) in steps of KEYS; k_ptr and the like point at the key head. `last`: last key there is.

    A row's numbers come to the same bits whether a step is masked or not: only then may chunks be cut anywhere.
    """
    dims = tl.arange(0, D)
    if INT8:  # a step ahead: scales would keep every step waiting
        row = _kv_rows(table_ptr, tl.minimum(begin + tl.arange(0, KEYS), last), BLOCK_SIZE, HK)
        k_factor, v_factor = tl.load(k_scale_ptr + row), tl.load(v_scale_ptr + row)
    for start in tl.range(begin, end, KEYS):
        token = start + tl.arange(0, KEYS)
        row = _kv_rows(table_ptr, tl.minimum(token, last) if MASKED else token, BLOCK_SIZE, HK)
        k = tl.load(k_ptr + row[:, None] * D + dims[None, :])
        v = tl.load(v_ptr + row[:, None] * D + dims[None, :])
        if INT8:
            k = int8_numbers(k, q.dtype, NATIVE) * k_factor.to(q.dtype)[:, None]
            v = int8_numbers(v, q.dtype, NATIVE) * v_factor.to(q.dtype)[:, None]
            row = _kv_rows(table_ptr, tl.minimum(token + KEYS, last), BLOCK_SIZE, HK)
            k_factor, v_factor = tl.load(k_scale_ptr + row), tl.load(v_scale_ptr + row)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)))
        if MASKED:
            seen = token[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (token[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        known = tl.where(new_best == float("-inf"), 0.0, new_best)  # rows that have seen no key yet
        p = _power_of_two(tl.fma(scores, scale, -(known * scale)[:, None]), NATIVE)
        shrink = _power_of_two((best - known) * scale, NATIVE)
        total = tl.fma(total, shrink, tl.sum(p, axis=1))
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * shrink[:, None])
        best = new_best
    return acc, total, best


@triton.jit(do_not_specialize=["stride_table", "num_tiles"])
def _paged_prefill_kernel(
    q_ptr, gate_ptr, stride_gate, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, sequences_ptr, tiles_ptr, num_tiles,
    tables_ptr, stride_table, scale, H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, INT8: tl.constexpr, GATED: tl.constexpr,
    EXACT: tl.constexpr, NATIVE: tl.constexpr,
):
    head = tl.program_id(0)
    tile = num_tiles - 1 - tl.program_id(1)  # the last ones see the most keys
    sequence = tl.load(tiles_ptr + 2 * tile)
    if sequence >= 0:
        first = tl.load(tiles_ptr + 2 * tile + 1)
        first_row = tl.load(sequences_ptr + 5 * sequence)
        num_tokens = tl.load(sequences_ptr + 5 * sequence + 1)
        start = tl.load(sequences_ptr + 5 * sequence + 2)
        slot = tl.load(sequences_ptr + 5 * sequence + 3)
        table_ptr = tables_ptr + slot.to(tl.int64) * stride_table
        token = first + tl.arange(0, QUERIES)
        real = (token < num_tokens)[:, None]
        dims = tl.arange(0, D)
        rows = (first_row + token).to(tl.int64)[:, None]
        q = tl.load(q_ptr + (rows * H + head) * D + dims[None, :], mask=real, other=0.0)
        q = q.to(tl.float32 if EXACT else (tl.float16 if INT8 else tl.bfloat16))
        position = start + token
        acc = tl.zeros((QUERIES, D), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        best = tl.full((QUERIES,), float("-inf"), tl.float32)
        kv_head = head // (H // HK)
        k_ptr += kv_head * D
        v_ptr += kv_head * D
        k_scale_ptr += kv_head
        v_scale_ptr += kv_head
        last = start + tl.minimum(first + QUERIES, num_tokens) - 1
        begin = first * 0
        plain = (start + first + 1) // KEYS * KEYS  # keys before it are seen by every query
        if WINDOW > 0:
            begin = tl.maximum(start + first - WINDOW + 1, 0) // KEYS * KEYS
            cut = tl.minimum(tl.maximum(tl.cdiv(last - WINDOW + 1, KEYS) * KEYS, begin), plain)  # all see keys from it
            acc, total, best = _walk(
                q, acc, total, best, begin, cut, position, table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale,
                last, D, HK, KEYS, BLOCK_SIZE, WINDOW, INT8, NATIVE, True,
            )
            begin = cut
        acc, total, best = _walk(
            q, acc, total, best, begin, plain, position, table_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale, last,
            D, HK, KEYS, BLOCK_SIZE, WINDOW, INT8, NATIVE, False,
        )
        acc, total, best = _walk(
            q, acc, total, best, tl.maximum(plain, begin), last + 1, position, table_ptr, k_ptr, v_ptr, k_scale_ptr,
            v_scale_ptr, scale, last, D, HK, KEYS, BLOCK_SIZE, WINDOW, INT8, NATIVE, True,
        )
        out = acc / tl.where(total > 0.0, total, 1.0)[:, None]  # beyond the sequence's end there may be nothing to see
        if GATED:
            gate = tl.load(gate_ptr + rows * stride_gate + head * 2 * D + D + dims[None, :], mask=real, other=0.0)
            out = out / (1.0 + tl.exp(-gate))
        tl.store(out_ptr + (rows * H + head) * D + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=real)


def _tile(head_dim: int, is_int8: bool) -> tuple[int, int]:
    """(keys at once, stages) that were fastest on an H200 (docs/performance.md)."""
    if head_dim <= 128:
        return 128, 2
    return (64, 2) if is_int8 else (64, 3)


def paged_prefill(
    q: Tensor,
    projected: Tensor,
    kv: tuple[Tensor, Tensor],
    kv_scales: tuple[Tensor, Tensor] | None,
    spans: Spans,
    shape: HeadShape,
    block_size: int,
    window: int,
    scale: float,
    out: Tensor,
) -> None:
    """softmax(scale q k^T) v per query head, times sigmoid(gate) where the heads are gated.

    q:          [num_tokens, num_q_heads, head_dim] bf16, f16 beside int8 keys (interpreter: f32); normalised, rotated
    projected:  [num_tokens, shape.row] f32, read for the gates only
    kv:         (k, v) each [num_slots, num_kv_heads, head_dim] bf16 or int8; kv_scales: with int8, [num_slots, heads]
    window:     tokens a query sees, itself counted; 0: all
    out:        [num_tokens, num_q_heads * head_dim] f16; rows of sequences written
    """
    num_tiles = spans.tiles.shape[0]
    k_scale, v_scale = kv_scales or kv
    keys, stages = _tile(shape.head_dim, kv_scales is not None) if has_large_shared_memory(q) else (32, 1)
    _paged_prefill_kernel[(shape.num_q_heads, num_tiles)](
        q, projected, projected.stride(0), *kv, k_scale, v_scale, out, spans.sequences, spans.tiles, num_tiles,
        spans.block_tables, spans.block_tables.stride(0), scale * LOG2_E,
        H=shape.num_q_heads, HK=shape.num_kv_heads, D=shape.head_dim, QUERIES=TILE, KEYS=keys, BLOCK_SIZE=block_size,
        WINDOW=window, INT8=kv_scales is not None, GATED=shape.is_gated, EXACT=INTERPRETED,
        NATIVE=has_dp4a(), num_warps=8, num_stages=stages,
    )
