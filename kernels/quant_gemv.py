"""y[m, n] = rms_m * sum_k W[n, k] x[m, k] for 1 to 8 rows x, W quantised, x 16-bit integers in blocks of 16.

Several matrices of different formats that read the same x share one launch: programs [0, p0) walk the first, and so on.
Bytes moved: every plane of every matrix once (x stays in the caches). Accumulation: int32 within 16 columns, f32 above,
in an order that depends on the matrix only.
Reference:   kernels/reference/quant_gemv.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import rms_factor
from kernels.few_rows import few_rows_gemv, fits
from kernels.launch import THREE_OF_8_WARPS, RowTile, has_dp4a, launch_options, row_tile
from kernels.quant_dot import dot_rows, first_tiles
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight


@triton.jit
def _segment(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, program, num_rows, y_ptr, stride_y,
    x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS: tl.constexpr, M: tl.constexpr, W: tl.constexpr, RT: tl.constexpr,
    T: tl.constexpr, DEPTH: tl.constexpr, NORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    offs = program * W * RT + tl.arange(0, W)[:, None] * RT + tl.arange(0, RT)[None, :]
    row = tl.minimum(offs, num_rows - 1)
    tiles = first_tiles(FMT, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS, T, DEPTH)
    if PDL:
        gdc_wait()
    factors = ()
    for m in tl.static_range(M):
        if NORM:
            factors = factors + (rms_factor(ss_ptr + m * (COLS // 16), tl.arange(0, W) * 0, eps, COLS),)
        else:
            factors = factors + (tl.full((W,), 1.0, tl.float32),)
    totals = dot_rows(
        FMT, tiles, q_ptr, h_ptr, s_ptr, d_ptr, row, x_ptr, xs_ptr, xm_ptr, xp_ptr, COLS, M, T, DEPTH, NATIVE
    )
    for m in tl.static_range(M):
        tl.store(y_ptr + m * stride_y + offs, totals[m] * factors[m][:, None], mask=offs < num_rows)


@triton.jit
def _quant_gemv_kernel(
    q0_ptr, h0_ptr, s0_ptr, d0_ptr, n0, q1_ptr, h1_ptr, s1_ptr, d1_ptr, n1, q2_ptr, h2_ptr, s2_ptr, d2_ptr, n2,
    x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, y_ptr, stride_y, eps, p1, p2,
    FMT0: tl.constexpr, FMT1: tl.constexpr, FMT2: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr,
    RT0: tl.constexpr, RT1: tl.constexpr, RT2: tl.constexpr, DEPTH0: tl.constexpr, DEPTH1: tl.constexpr,
    DEPTH2: tl.constexpr, COLS: tl.constexpr, M: tl.constexpr, NUM_WARPS: tl.constexpr, NORM: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    program = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    # The last matrix first: it is the smallest, and its few, slower programs must not end the launch.
    if FMT2 >= 0:
        if program < p2:
            _segment(FMT2, q2_ptr, h2_ptr, s2_ptr, d2_ptr, program, n2, y_ptr + n0 + n1, stride_y, x_ptr, xs_ptr,
                     xm_ptr,
                     xp_ptr, ss_ptr, eps, COLS, M, NUM_WARPS * 32 // T2, RT2, T2, DEPTH2, NORM, NATIVE, PDL)
    if FMT1 >= 0:
        if program >= p2 and program < p2 + p1:
            _segment(FMT1, q1_ptr, h1_ptr, s1_ptr, d1_ptr, program - p2, n1, y_ptr + n0, stride_y, x_ptr, xs_ptr,
                     xm_ptr,
                     xp_ptr, ss_ptr, eps, COLS, M, NUM_WARPS * 32 // T1, RT1, T1, DEPTH1, NORM, NATIVE, PDL)
    if program >= p2 + p1:
        _segment(FMT0, q0_ptr, h0_ptr, s0_ptr, d0_ptr, program - p2 - p1, n0, y_ptr, stride_y, x_ptr, xs_ptr, xm_ptr,
                 xp_ptr, ss_ptr, eps, COLS, M, NUM_WARPS * 32 // T0, RT0, T0, DEPTH0, NORM, NATIVE, PDL)


def gemv_tile(quant_format: QuantFormat, num_rows: int, num_cols: int, num_tokens: int, num_warps: int) -> RowTile:
    """The tile that was fastest on an H200 for such a shape (docs/performance.md)."""
    if quant_format.is_float:
        return row_tile(quant_format, num_cols, num_warps, 1, max(1, 4 // num_tokens), chunks=32 * num_warps)
    is_wide = quant_format == QuantFormat.Q8_0
    depth = max(1, (4 if is_wide else 2) // num_tokens)
    rows = 4 if num_tokens == 1 and not is_wide and num_rows >= 4096 else 2
    return row_tile(quant_format, num_cols, num_warps, rows, depth)


def gemv_warps(weights: Sequence[QuantWeight]) -> int:
    """Warps a program: one number for all matrices of a launch."""
    return 8 if weights[0].format == QuantFormat.Q8_0 else 4


def quant_gemv(
    x: QuantActivation,
    weights: Sequence[QuantWeight],
    eps: float | None,
    out: Tensor | None = None,
    tile: RowTile | None = None,
    pdl: bool = False,
) -> Tensor:
    """Up to three matrices with the same input, in one launch.

    x:        num_tokens 1 to 8
    weights:  each [num_rows_i, num_cols]
    eps:      the RMS norm's epsilon, its factor taken from x.square_sums; None: no norm
    tile:     for every matrix, or None to choose by shape
    out:      [num_tokens, sum of num_rows_i] f32, or None to allocate
    pdl:      whether the kernel before it in the stream signals early (programmatic dependent launch)
    returns   out: the matrices' results side by side
    """
    total = sum(w.num_rows for w in weights)
    if out is None:
        out = torch.empty(x.num_tokens, total, dtype=torch.float32, device=x.values.device)
    if tile is None and fits(x, weights):
        few_rows_gemv(x, weights, eps, out, pdl)
        return out
    first = weights[0]
    num_warps = gemv_warps(weights)
    tiles = [tile or gemv_tile(w.format, w.num_rows, w.num_cols, x.num_tokens, num_warps) for w in weights]
    programs = [-(-w.num_rows // t.rows) for w, t in zip(weights, tiles, strict=True)]
    missing = 3 - len(weights)
    padded = [*weights, *[first] * missing]
    tiles = [*tiles, *[tiles[0]] * missing]
    formats = [int(w.format) for w in weights] + [-1] * missing
    planes = [argument for w in padded for argument in (w.quants, w.high, w.scales, w.supers, w.num_rows)]
    _quant_gemv_kernel[(sum(programs),)](
        *planes, x.values.view(torch.int32), x.scales, x.sums, x.plain, x.square_sums, out, out.stride(0),
        0.0 if eps is None else eps, sum(programs[1:2]), sum(programs[2:]),
        FMT0=formats[0], FMT1=formats[1], FMT2=formats[2], T0=tiles[0].chunks, T1=tiles[1].chunks, T2=tiles[2].chunks,
        RT0=tiles[0].rows_per_thread, RT1=tiles[1].rows_per_thread, RT2=tiles[2].rows_per_thread,
        DEPTH0=tiles[0].depth, DEPTH1=tiles[1].depth, DEPTH2=tiles[2].depth, COLS=first.num_cols, M=x.num_tokens,
        NUM_WARPS=tiles[0].num_warps, NORM=eps is not None,
        NATIVE=has_dp4a(), PDL=pdl, **launch_options(tiles[0].num_warps, pdl, THREE_OF_8_WARPS),
    )
    return out
