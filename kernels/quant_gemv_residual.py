"""residual += W x, and the finished rows quantised as the next layer's input, in one launch (1 to 8 rows).

Each program finishes 16 rows of W, which are one block of the next input, so no other pass over the row is needed; the
RMS factor is left to the next consumer (`QuantActivation`).
Bytes moved: every plane of W once, 3 rows of activations. Accumulation as in `quant_gemv`.
Reference:   kernels/reference/quant_gemv.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels import streamed_products
from kernels.activation import emit_block
from kernels.few_rows import few_rows_residual, fits
from kernels.half_rows import emit_half, half_arguments
from kernels.launch import RowTile, block_tile, has_dp4a, launch_options
from kernels.quant_dot import dot_rows, first_tiles
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight


@triton.jit
def _quant_gemv_residual_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, x_ptr, xs_ptr, xm_ptr, xq_ptr, eps, residual_ptr, w_ptr,
    v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr, half_ptr, factors_ptr, hints_ptr, FMT: tl.constexpr, COLS: tl.constexpr,
    N: tl.constexpr, M: tl.constexpr, FORM: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr, RT: tl.constexpr, T: tl.constexpr, DEPTH: tl.constexpr, NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    row = block * 16 + tl.arange(0, W)[:, None] * RT + tl.arange(0, RT)[None, :]
    offs = block * 16 + tl.arange(0, 16)
    norm = tl.load(w_ptr + offs)
    tiles = first_tiles(FMT, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS, T, DEPTH)
    if PDL:
        gdc_wait()
    before = ()
    for m in tl.static_range(M):
        before = before + (tl.load(residual_ptr + m * N + offs),)
    totals = dot_rows(
        FMT, tiles, q_ptr, h_ptr, s_ptr, d_ptr, row, x_ptr, xs_ptr, xm_ptr, None, COLS, M, T, DEPTH, NATIVE,
        GROUP, xq_ptr, eps
    )
    for m in tl.static_range(M):
        y = tl.reshape(totals[m], (16,)) + before[m]
        tl.store(residual_ptr + m * N + offs, y)
        emit_block(y, block, norm, v_ptr + m * 2 * N, ys_ptr + m * (N // 16), ym_ptr + m * (N // 16), yp_ptr + m * N,
                   ss_ptr + m * (N // 16), N)
        if FORM >= 0:
            emit_half(y * norm, tl.load(hints_ptr + m), block, m, half_ptr, factors_ptr, FORM == 1)


def residual_tile(quant_format: QuantFormat, num_rows: int, num_cols: int, num_tokens: int) -> RowTile:
    """The tile that was fastest on an H200 for such a shape (docs/performance.md)."""
    depth = max(1, 4 // num_tokens)
    if quant_format == QuantFormat.Q8_0:
        return block_tile(quant_format, num_cols, num_warps=8, chunks=64, depth=depth)
    depth = depth if num_cols <= 4096 else min(depth, 2)
    return block_tile(quant_format, num_cols, num_warps=4, chunks=32, depth=depth)


def quant_gemv_residual(
    x: QuantActivation,
    weight: QuantWeight,
    residual: Tensor,
    norm_weight: Tensor,
    out: QuantActivation,
    group: int = 0,
    eps: float = 0.0,
    tile: RowTile | None = None,
    pdl: bool = False,
) -> None:
    """Add a projection to the residual stream and emit the next norm's input.

    x:            num_tokens 1 to 8, taken without a norm factor
    weight:       [hidden, num_cols], hidden a multiple of 32
    residual:     [num_tokens, hidden] f32, changed in place
    norm_weight:  [hidden] f32, weight of the norm that follows
    out:          [num_tokens, hidden], every plane written, out.half only of four rows and more
    group:        columns of x that share an RMS factor, taken from x.square_sums with eps; 0: none
    """
    if tile is None and fits(x, [weight]) and group % 128 == 0:
        few_rows_residual(x, weight, residual, norm_weight, out, group, eps, pdl)
        return
    if tile is None and streamed_products.fits(x, weight):
        streamed_products.streamed_residual(x, weight, residual, norm_weight, out, group, eps, pdl)
        return
    tile = tile or residual_tile(weight.format, weight.num_rows, weight.num_cols, x.num_tokens)
    *half, form = half_arguments(out)
    _quant_gemv_residual_kernel[(weight.num_rows // 16,)](
        weight.quants, weight.high, weight.scales, weight.supers, x.values.view(torch.int32), x.scales, x.sums,
        x.square_sums, eps, residual, norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums,
        *half, FORM=form, FMT=int(weight.format), COLS=weight.num_cols, N=weight.num_rows, M=x.num_tokens, GROUP=group,
        W=tile.row_lanes, RT=tile.rows_per_thread, T=tile.chunks, DEPTH=tile.depth, NATIVE=has_dp4a(), PDL=pdl,
        **launch_options(tile.num_warps, pdl, None),
    )
