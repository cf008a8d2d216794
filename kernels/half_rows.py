"""Rows as f16 numbers in the order that `quant_mma` reads: that order, what kernels need to write it as they finish a
row, and a kernel that makes it of 16-bit integers.

The tensor cores' operands: value = factor of the row * number. For each 256 columns: 8 pieces of 16 bytes of each of 32
lanes, lane 4g + t those of token g, each four columns in the order 0, 2, 1, 3. So a warp reads 512 bytes at once. Lane
t has the columns from 64t on; of matrices whose 16 bytes are 16 columns (`wide`), every fourth 16 columns.

A kernel that finishes a row in pieces knows neither its norm nor its largest number. It multiplies by a power of two,
the row's hint, which puts the row that was before it at 1/64 of its norm's weight on average: a row may grow by 4e6
over its weights before numbers are beyond f16 (they count as its largest then), and be 2^-8 of the one before it with
every number of average size still right to 2^-11. Smaller numbers are right to 2^-25.
The kernel: 4 bytes moved an element; rows of at most 1, norm factors applied. Accumulation: f32.
Reference:   kernels/reference/quant_gemv.py (dequantize_rows)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import LEVELS, TINY
from kernels.quant_format import HalfRows, QuantActivation, QuantFormat, QuantWeight

BLOCKS = 32  # of 16 columns, a program
F16_MAX = tl.constexpr(65504.0)
HINTED = tl.constexpr(1.0 / 64.0)


@triton.jit
def half_hint(norm_factor):
    """What rows after one with this factor are multiplied by: the power of two below, times 1/64."""
    power = norm_factor.to(tl.int32, bitcast=True) & 0x7F800000
    return power.to(tl.float32, bitcast=True) * HINTED


@triton.jit
def half_place(block, column, token, WIDE: tl.constexpr):
    """Index in `HalfRows.values` of one of the 16 columns of a block."""
    at = column // 4 * 4 + column % 2 * 2 + column // 2 % 2
    turn = (block % 16 // 4) if WIDE else (block % 4)
    lane = token * 4 + ((block % 4) if WIDE else (block % 16 // 4))
    return block // 16 * 2048 + (turn * 2 + at // 8) * 256 + lane * 8 + at % 8


@triton.jit
def store_half(numbers, target, mask=None):
    """To addresses made by `half_place`, what exceeds f16 as the largest that does not."""
    tl.store(target, tl.minimum(tl.maximum(numbers, -F16_MAX), F16_MAX).to(tl.float16), mask=mask)


@triton.jit
def store_columns(x, first_column, token, half_ptr, mask, WIDE: tl.constexpr):
    """Columns of a row as they are, [N] f32, from the given one on: for rows whose factor is one."""
    column = first_column + tl.arange(0, x.shape[0])
    store_half(x, half_ptr + half_place(column // 16, column % 16, token, WIDE), mask)


@triton.jit
def emit_half(weighted, hint, block, token, half_ptr, factors_ptr, WIDE: tl.constexpr):
    """Write block number `block` of a finished row, times its norm's weight: weighted [16] f32."""
    store_half(weighted * hint, half_ptr + half_place(block, tl.arange(0, 16), token, WIDE))
    if block == 0:
        tl.store(factors_ptr + token, 1.0 / hint)


def half_arguments(x: QuantActivation) -> tuple[Tensor, Tensor, Tensor, int]:
    """(values, factors, hints, form) of x.half for a kernel that makes x; form: -1 none, 0, 1 wide."""
    if x.half is None:
        return x.scales, x.scales, x.scales, -1
    return x.half.values, x.half.factors, x.half.hints, int(x.half.is_wide)


@triton.jit
def _scales(xs_ptr, ss_ptr, block, mask, eps, COLS: tl.constexpr, GROUP: tl.constexpr):
    """Scale of each block, its group's factor applied; block, mask: [N]."""
    place = (block % 2) * (COLS // 32) + block // 2
    scale = tl.load(xs_ptr + place, mask=mask, other=0.0)
    if GROUP > 0:
        SPAN: tl.constexpr = GROUP // 16
        squares = tl.load(ss_ptr + (block // SPAN * SPAN)[:, None] + tl.arange(0, SPAN)[None, :], mask=mask[:, None],
                          other=0.0)
        scale *= tl.rsqrt(tl.sum(squares, axis=1) / GROUP + eps)
    return scale


@triton.jit
def _half_rows_kernel(
    v_ptr, xs_ptr, ss_ptr, y_ptr, factors_ptr, eps, M: tl.constexpr, COLS: tl.constexpr, NORM: tl.constexpr,
    GROUP: tl.constexpr, ALL: tl.constexpr, BLOCKS: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):
    part = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    xs_ptr += m * (COLS // 16)
    ss_ptr += m * (COLS // 16)
    every = tl.arange(0, ALL)
    real = (every < COLS // 16) & (m < M)
    largest = tl.max(_scales(xs_ptr, ss_ptr, every, real, eps, COLS, GROUP), axis=0) * LEVELS
    if part == 0:
        factor = largest
        if NORM:
            squares = tl.load(ss_ptr + every, mask=real, other=0.0)
            factor *= tl.rsqrt(tl.sum(squares, axis=0) / COLS + eps)
        tl.store(factors_ptr + m, factor)
    block = part * BLOCKS + tl.arange(0, BLOCKS)
    inside = block < COLS // 16
    scale = _scales(xs_ptr, ss_ptr, block, inside & (m < M), eps, COLS, GROUP)
    scale /= tl.maximum(largest, TINY)
    column = tl.arange(0, 16)
    place = (block % 2) * (COLS // 32) + block // 2
    bytes_ptr = v_ptr + m * (2 * COLS) + place[:, None] * 16 + column[None, :]
    mask = (inside & (m < M))[:, None] & (column >= 0)[None, :]
    value = 256.0 * tl.load(bytes_ptr, mask=mask, other=0).to(tl.float32)
    value += tl.load(bytes_ptr + COLS, mask=mask, other=0).to(tl.float32)
    target = y_ptr + half_place(block[:, None], column[None, :], m, WIDE)
    tl.store(target, (value * scale[:, None]).to(tl.float16), mask=inside[:, None] & (column >= 0)[None, :])


def half_rows(
    x: QuantActivation, weight: QuantWeight, eps: float | None, group: int = 0, pdl: bool = False
) -> HalfRows:
    """All of x, at most 8 rows of whole 256 columns, in the order for weight's format; no hints.

    eps:   of the norm whose factor x is to get, a row's own or, with `group`, one per so many columns; None: no factor
    """
    num_cols = x.num_cols
    factors = torch.empty(8, dtype=torch.float32, device=x.values.device)
    values = torch.empty(8, num_cols, dtype=torch.float16, device=x.values.device)
    out = HalfRows(values, factors, factors, weight.format == QuantFormat.Q8_0)
    options = {"launch_pdl": True} if pdl else {}
    num_blocks = num_cols // 16
    _half_rows_kernel[(triton.cdiv(num_blocks, BLOCKS), 8)](
        x.values, x.scales, x.square_sums, out.values, out.factors, 0.0 if eps is None else eps, M=x.num_tokens,
        COLS=num_cols, NORM=eps is not None and group == 0, GROUP=group, ALL=triton.next_power_of_2(num_blocks),
        BLOCKS=BLOCKS, WIDE=out.is_wide, PDL=pdl, num_warps=4, **options,
    )
    return out
