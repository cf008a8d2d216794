"""Products of a small matrix of float32 numbers, such as a router, with 16 rows and more, cut along the columns.

Tensor cores in three products of TF32 parts each, which is float32 but for its last bit or two.
Bytes moved: the matrix once per 16 rows of x, x once per 32 rows of the matrix. Accumulation: f32, in a fixed order.
Reference:   kernels/reference/quant_gemv.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.behind_loads import zero_behind_loads
from kernels.launch import has_dp4a
from kernels.quant_format import QuantFormat, QuantWeight

PART = 256  # columns, at least, of a part
MAX_PARTS = 8
CHUNK = 128


@triton.jit
def _plain_rows_kernel(
    w_ptr, x_ptr, ss_ptr, y_ptr, num_tokens, num_rows, stride_split, eps, COLS: tl.constexpr, SPLITS: tl.constexpr,
    CHUNK: tl.constexpr, NORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """CHUNK: columns of a product; two of them are asked for at once, the first weights before the wait for x."""
    if PDL:
        gdc_launch_dependents()
    STEPS: tl.constexpr = COLS // 32
    PRECISION: tl.constexpr = "tf32x3" if NATIVE else "ieee"
    split = tl.program_id(2)
    first = STEPS * split // SPLITS * 32
    last = STEPS * (split + 1) // SPLITS * 32
    token = tl.program_id(1) * 16 + tl.arange(0, 16)
    row = tl.program_id(0) * 32 + tl.arange(0, 32)
    column = tl.arange(0, CHUNK)
    x_ptrs = x_ptr + tl.minimum(token, num_tokens - 1)[:, None] * COLS + column[None, :]
    w_ptrs = w_ptr + tl.minimum(row, num_rows - 1)[None, :] * COLS + column[:, None]
    acc = tl.zeros((16, 32), tl.float32)
    for start in tl.range(first, last, 2 * CHUNK):
        inside = start + column < last
        later = start + CHUNK + column < last
        w = tl.load(w_ptrs + start, mask=inside[:, None], other=0.0)
        later_w = tl.load(w_ptrs + start + CHUNK, mask=later[:, None], other=0.0)
        if PDL:
            if start == first:
                gdc_wait()
        x = tl.load(x_ptrs + start, mask=inside[None, :], other=0.0)
        later_x = tl.load(x_ptrs + start + CHUNK, mask=later[None, :], other=0.0)
        zero = zero_behind_loads(NATIVE)
        acc = tl.dot(x + zero, w, acc, input_precision=PRECISION)
        acc = tl.dot(later_x + zero, later_w, acc, input_precision=PRECISION)
    if NORM:
        blocks = tl.arange(0, triton.next_power_of_2(COLS // 16))
        places = tl.minimum(token, num_tokens - 1)[:, None] * (COLS // 16) + blocks[None, :]
        squares = tl.load(ss_ptr + places, mask=(blocks < COLS // 16)[None, :], other=0.0)
        acc *= tl.rsqrt(tl.sum(squares, axis=1) / COLS + eps)[:, None]
    target = y_ptr + split * stride_split + token[:, None] * num_rows + row[None, :]
    tl.store(target, acc, mask=(token < num_tokens)[:, None] & (row < num_rows)[None, :])


def fits(weight: QuantWeight) -> bool:
    """Whether the kernel takes the matrix."""
    return weight.format == QuantFormat.F32 and weight.num_cols % 32 == 0


def plain_rows(
    x: Tensor, weight: QuantWeight, square_sums: Tensor | None = None, eps: float = 0.0, pdl: bool = False
) -> Tensor:
    """[num_parts, num_tokens, num_rows] f32, still to be added up; the parts follow num_cols alone.

    x:            [num_tokens, num_cols] f32
    square_sums:  [num_tokens, num_cols / 16] f32, of the norm (with eps) whose factor the products get; None: no factor
    """
    num_tokens, num_cols = x.shape
    splits = max(1, min(MAX_PARTS, num_cols // PART))
    parts = torch.empty(splits, num_tokens, weight.num_rows, dtype=torch.float32, device=x.device)
    options = {"launch_pdl": True} if pdl else {}
    _plain_rows_kernel[(triton.cdiv(weight.num_rows, 32), triton.cdiv(num_tokens, 16), splits)](
        weight.quants, x, x if square_sums is None else square_sums, parts, num_tokens, weight.num_rows,
        parts.stride(0), eps, COLS=num_cols, SPLITS=splits, CHUNK=CHUNK, NORM=square_sums is not None,
        NATIVE=has_dp4a(), PDL=pdl, num_warps=4, num_stages=1, **options,
    )
    return parts
