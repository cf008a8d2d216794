"""Rows of 16-bit integers as f16, norm factor applied, in the order of columns that `many_rows` wants.

Bytes moved: 2 bytes read (from L2) and 2 written per element.
Reference:   kernels/reference/pack_halves.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.quant_format import QuantActivation

F16_MAX = tl.constexpr(65504.0)


@triton.jit
def packed_place(column):
    """Where a column lies in a row that `many_rows` reads."""
    place = column // 128 * 128 + column // 4 % 4 * 32 + column // 16 % 2 * 16 + column % 2 * 8
    return place + column // 32 % 4 * 2 + column // 2 % 2


@triton.jit
def _pack_halves_kernel(
    v_ptr, s_ptr, ss_ptr, y_ptr, eps, COLS: tl.constexpr, SPAN: tl.constexpr, IN_ORDER: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    """SPAN: columns that share an RMS factor, 0 for none. IN_ORDER: of the matrix's columns."""
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    group = position // 128
    half = position // 16 % 2
    if IN_ORDER:
        t = position // 32 % 4
        within = position % 16
    else:
        t = position // 2 % 4
        within = position // 32 % 4 * 4 + position // 8 % 2 + position % 2 * 2
    place = half * (COLS // 32) + group * 4 + t
    inside = position < COLS
    high = tl.load(v_ptr + m * 2 * COLS + place * 16 + within, mask=inside, other=0)
    low = tl.load(v_ptr + m * 2 * COLS + COLS + place * 16 + within, mask=inside, other=0)
    x = (256.0 * high.to(tl.float32) + low.to(tl.float32)) * tl.load(s_ptr + m * (COLS // 16) + place, mask=inside,
                                                                    other=0.0)
    if SPAN == COLS:
        blocks = tl.arange(0, triton.next_power_of_2(COLS // 16))
        squares = tl.load(ss_ptr + m * (COLS // 16) + blocks, mask=blocks < COLS // 16, other=0.0)
        x *= tl.rsqrt(tl.sum(squares, axis=0) / COLS + eps)
    elif SPAN > 0:
        column = group * 128 + t * 32 + half * 16
        blocks = (column // SPAN * (SPAN // 16))[:, None] + tl.arange(0, SPAN // 16)[None, :]
        squares = tl.load(ss_ptr + m * (COLS // 16) + blocks, mask=inside[:, None], other=0.0)
        x *= tl.rsqrt(tl.sum(squares, axis=1) / SPAN + eps)
    x = tl.minimum(tl.maximum(x, -F16_MAX), F16_MAX)
    tl.store(y_ptr + m * COLS + position, x.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _pack_rows_kernel(x_ptr, y_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = position // 128 * 128 + position // 2 % 4 * 32 + position // 16 % 2 * 16 + position // 32 % 4 * 4
    column += position // 8 % 2 + position % 2 * 2
    inside = position < COLS
    x = tl.load(x_ptr + m * COLS + column, mask=inside, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(x, -F16_MAX), F16_MAX)
    tl.store(y_ptr + m * COLS + position, x.to(tl.float16), mask=inside)


def pack_rows(x: Tensor) -> Tensor:
    """Plain contiguous rows [num_tokens, num_cols], num_cols a multiple of 128 -> f16 in the order of `pack_halves`."""
    num_tokens, num_cols = x.shape
    out = torch.empty(num_tokens, num_cols, dtype=torch.float16, device=x.device)
    _pack_rows_kernel[(num_tokens, triton.cdiv(num_cols, 1024))](x, out, COLS=num_cols, BLOCK=1024)
    return out


def pack_halves(
    x: QuantActivation, span: int, eps: float, pdl: bool = False, in_order_as: torch.dtype | None = None
) -> Tensor:
    """Make the input of `many_rows`, or of an ordinary product.

    x:        num_cols a multiple of 128
    span:     columns that share an RMS factor, taken from x.square_sums with eps: all, a power of two, or 0 for none
    in_order_as: the type of rows whose columns lie as the matrix's do; None: f16, as `many_rows` wants them
    returns   [num_tokens, num_cols]; what exceeds f16 is the largest that does not
    """
    dtype = in_order_as or torch.float16
    out = torch.empty(x.num_tokens, x.num_cols, dtype=dtype, device=x.values.device)
    block = 256
    options = {"launch_pdl": True} if pdl else {}
    _pack_halves_kernel[(triton.cdiv(x.num_cols, block), x.num_tokens)](
        x.values, x.scales, x.square_sums, out, eps, COLS=x.num_cols, SPAN=span,
        IN_ORDER=in_order_as is not None, BLOCK=block, PDL=pdl, **options,
    )
    return out
