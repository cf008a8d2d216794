"""Rows of 16-bit integers as f16 numbers of at most 1, norm factors applied, in the order that `quant_mma` reads.

The tensor cores' operands: value = factor of the row * number. For each 256 columns: 8 pieces of 16 bytes of each of 32
lanes, lane 4g + t those of token g, each four columns in the order 0, 2, 1, 3. So a warp reads 512 bytes at once. Lane
t has the columns from 64t on; of matrices whose 16 bytes are 16 columns (`wide`), every fourth 16 columns.
Bytes moved: 4 bytes an element. Accumulation: f32.
Reference:   kernels/reference/quant_gemv.py (dequantize_rows)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import LEVELS, TINY
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight

BLOCKS = 32  # of 16 columns, a program


@dataclass(frozen=True, slots=True)
class HalfRows:
    """values: [8, num_cols] f16, zeros past the last token; factors: [8] f32."""

    values: Tensor
    factors: Tensor


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
    at = tl.arange(0, 16)
    column = at // 4 * 4 + at % 2 * 2 + at // 2 % 2
    place = (block % 2) * (COLS // 32) + block // 2
    bytes_ptr = v_ptr + m * (2 * COLS) + place[:, None] * 16 + column[None, :]
    mask = (inside & (m < M))[:, None] & (at >= 0)[None, :]
    value = 256.0 * tl.load(bytes_ptr, mask=mask, other=0).to(tl.float32)
    value += tl.load(bytes_ptr + COLS, mask=mask, other=0).to(tl.float32)
    turn = (block % 16 // 4) if WIDE else (block % 4)
    piece = turn[:, None] * 2 + (at // 8)[None, :]
    lane = m * 4 + ((block % 4) if WIDE else (block % 16 // 4))
    target = y_ptr + (block // 16)[:, None] * 2048 + piece * 256 + lane[:, None] * 8 + (at % 8)[None, :]
    tl.store(target, (value * scale[:, None]).to(tl.float16), mask=inside[:, None] & (at >= 0)[None, :])


def half_rows(
    x: QuantActivation, weight: QuantWeight, eps: float | None, group: int = 0, pdl: bool = False
) -> HalfRows:
    """All of x, at most 8 rows of whole 256 columns, in the order for weight's format.

    eps:   of the norm whose factor x is to get, a row's own or, with `group`, one per so many columns; None: no factor
    """
    num_cols = x.num_cols
    out = HalfRows(
        torch.empty(8, num_cols, dtype=torch.float16, device=x.values.device),
        torch.empty(8, dtype=torch.float32, device=x.values.device),
    )
    options = {"launch_pdl": True} if pdl else {}
    num_blocks = num_cols // 16
    _half_rows_kernel[(triton.cdiv(num_blocks, BLOCKS), 8)](
        x.values, x.scales, x.square_sums, out.values, out.factors, 0.0 if eps is None else eps, M=x.num_tokens,
        COLS=num_cols, NORM=eps is not None and group == 0, GROUP=group, ALL=triton.next_power_of_2(num_blocks),
        BLOCKS=BLOCKS, WIDE=weight.format == QuantFormat.Q8_0, PDL=pdl, num_warps=4, **options,
    )
    return out
