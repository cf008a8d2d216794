"""What ends a product that `many_rows` cut into parts: their sum in a fixed order, then what the layer does with it.

Bytes moved: every part once, the results once. Accumulation: f32, part by part.
Reference:   kernels/reference/split_sums.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import emit_blocks, quantize_blocks
from kernels.behind_loads import sum_behind_loads, zero_behind_loads
from kernels.launch import has_dp4a
from kernels.pack_halves import packed_place
from kernels.quant_format import QuantActivation

BLOCK = 256  # columns a program finishes
PACKED_BLOCK = 1024  # of f16 numbers, which are few bytes


@triton.jit
def _sum(part_ptr, offs, inside, stride_split, SPLITS: tl.constexpr):
    total = tl.load(part_ptr + offs, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(part_ptr + split * stride_split + offs, mask=inside, other=0.0)
    return total


@triton.jit
def _plain_kernel(
    part_ptr, y_ptr, num_cols, stride_part, stride_split, stride_y, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < num_cols
    tl.store(y_ptr + m * stride_y + offs, _sum(part_ptr + m * stride_part, offs, inside, stride_split, SPLITS),
             mask=inside)


@triton.jit
def _residual_kernel(
    part_ptr, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr, stride_split, N: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < N
    y = tl.load(residual_ptr + m * N + offs, mask=inside, other=0.0)
    y += _sum(part_ptr + m * N, offs, inside, stride_split, SPLITS)
    tl.store(residual_ptr + m * N + offs, y, mask=inside)
    norm = tl.load(w_ptr + offs, mask=inside, other=0.0)
    emit_blocks(y, norm, tl.program_id(0) * (BLOCK // 16), v_ptr + m * 2 * N, ys_ptr + m * (N // 16),
                ym_ptr + m * (N // 16), yp_ptr + m * N, ss_ptr + m * (N // 16), N, BLOCK // 16)


@triton.jit
def _swiglu_kernel(
    gate_ptr, up_ptr, v_ptr, ys_ptr, ym_ptr, stride_split, FFN: tl.constexpr, SPLITS: tl.constexpr,
    BLOCKS: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    offs = tl.program_id(0) * BLOCKS * 16 + tl.arange(0, BLOCKS * 16)
    inside = offs < FFN
    gate = _sum(gate_ptr + m * FFN, offs, inside, stride_split, SPLITS)
    h = gate / (1.0 + tl.exp(-gate)) * _sum(up_ptr + m * FFN, offs, inside, stride_split, SPLITS)
    quantize_blocks(h, tl.program_id(0) * BLOCKS, v_ptr + m * 2 * FFN, ys_ptr + m * (FFN // 16),
                    ym_ptr + m * (FFN // 16), FFN, BLOCKS)


@triton.jit
def _swiglu_packed_kernel(
    gate_ptr, up_ptr, y_ptr, stride_split, factor, FFN: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < FFN
    gates = ()
    ups = ()
    for split in tl.static_range(SPLITS):
        offs = m * FFN + split * stride_split + column
        gates = gates + (tl.load(gate_ptr + offs, mask=inside, other=0.0),)
        ups = ups + (tl.load(up_ptr + offs, mask=inside, other=0.0),)
    zero = zero_behind_loads(NATIVE)
    gate = sum_behind_loads(gates, zero, SPLITS)
    up = sum_behind_loads(ups, zero, SPLITS)
    h = gate / (1.0 + tl.exp(-gate)) * up * factor
    tl.store(y_ptr + m * FFN + packed_place(column), h.to(tl.float16), mask=inside)


def _options(pdl: bool) -> dict[str, object]:
    return {"PDL": pdl, **({"launch_pdl": True} if pdl else {})}


def add_parts(parts: Tensor, out: Tensor, pdl: bool = False) -> None:
    """parts: [num_splits, num_tokens, n] f32; out: [num_tokens, n] f32, a slice of wider rows perhaps, written."""
    splits, num_tokens, num_cols = parts.shape
    _plain_kernel[(triton.cdiv(num_cols, BLOCK), num_tokens)](
        parts, out, num_cols, parts.stride(1), parts.stride(0), out.stride(0), SPLITS=splits, BLOCK=BLOCK,
        **_options(pdl),
    )


def add_parts_residual(
    parts: Tensor, residual: Tensor, norm_weight: Tensor, out: QuantActivation, pdl: bool = False
) -> None:
    """residual += the sum, and the next layer's input, as `quant_gemv_residual` leaves them.

    parts:  [num_splits, num_tokens, hidden] f32, contiguous; the rest as there
    """
    splits, num_tokens, hidden = parts.shape
    _residual_kernel[(triton.cdiv(hidden, BLOCK), num_tokens)](
        parts, residual, norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums, parts.stride(0),
        N=hidden, SPLITS=splits, BLOCK=BLOCK, **_options(pdl),
    )


def add_parts_swiglu(gate: Tensor, up: Tensor, out: QuantActivation, pdl: bool = False) -> None:
    """silu(sum of gate's parts) * (sum of up's), quantised.

    gate, up:  [num_splits, num_tokens, ffn] f32, contiguous, ffn a multiple of 32
    out:       [num_tokens, ffn] values, scales and sums written
    """
    splits, num_tokens, ffn = gate.shape
    blocks = min(16, ffn // 16 & -(ffn // 16))
    _swiglu_kernel[(ffn // (16 * blocks), num_tokens)](
        gate, up, out.values, out.scales, out.sums, gate.stride(0), FFN=ffn, SPLITS=splits, BLOCKS=blocks,
        **_options(pdl),
    )


def add_parts_swiglu_packed(gate: Tensor, up: Tensor, factor: float, pdl: bool = False) -> Tensor:
    """factor * silu(sum of gate's parts) * (sum of up's), [num_tokens, ffn] f16 as `many_rows` wants it.

    gate, up:  [num_splits, num_tokens, ffn] f32, contiguous, ffn a multiple of 128
    factor:    power of two that keeps the products within f16
    """
    splits, num_tokens, ffn = gate.shape
    out = torch.empty(num_tokens, ffn, dtype=torch.float16, device=gate.device)
    _swiglu_packed_kernel[(triton.cdiv(ffn, PACKED_BLOCK), num_tokens)](
        gate, up, out, gate.stride(0), factor, FFN=ffn, SPLITS=splits, BLOCK=PACKED_BLOCK, NATIVE=has_dp4a(),
        **_options(pdl),
    )
    return out
