"""The quantised projections of `quant_gemv`, `quant_gemv_residual` and `quant_swiglu` for four to eight rows, on the
tensor cores: their cost does not grow with the rows. Those modules' functions call these; the contracts are theirs, but
for the arithmetic: weights and activations become f16 numbers.

A program makes 16 rows of the matrix for every token; its warps share the columns.
Bytes moved: every plane once. Accumulation: f32, in an order that does not depend on the number of tokens.
Reference:   kernels/reference/quant_gemv.py, kernels/reference/quant_moe.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import LEVELS, TINY, rms_factor, store_bytes
from kernels.half_rows import half_rows
from kernels.launch import has_dp4a, row_tile
from kernels.quant_dot import dot_rows, first_tiles
from kernels.quant_format import QuantActivation, QuantFormat, QuantWeight
from kernels.quant_mma import first_group, mma_rows, mma_two, warp_rows
from kernels.quant_unpack import is_float

MIN_ROWS, MAX_ROWS = 4, 8  # fewer were faster on the vector units of an H200 (docs/performance.md)


def fits(x: QuantActivation, weights: Sequence[QuantWeight]) -> bool:
    """Whether these kernels should take the product: four to eight rows, whole groups of columns."""
    quantised = [w for w in weights if not w.format.is_float]
    one_order = len({w.format == QuantFormat.Q8_0 for w in quantised}) == 1  # half_rows
    return MIN_ROWS <= x.num_tokens <= MAX_ROWS and one_order and all(
        w.num_cols % 256 == 0 and w.num_rows >= 16 for w in quantised
    )


@triton.jit
def _quantize_columns(x, block, v_ptr, ys_ptr, ym_ptr, N: tl.constexpr, M: tl.constexpr):
    """Block number `block` of every token's row: its 16 values x [16, 8] as integers, scale and scaled sum."""
    token = tl.arange(0, 8)
    place = (block % 2) * (N // 32) + block // 2
    amax = tl.max(tl.abs(x), axis=0)
    scale = amax / LEVELS
    inverse = LEVELS / tl.where(amax > TINY, amax, TINY)
    q = tl.floor(x * inverse[None, :] + 0.5)
    values = v_ptr + token[None, :] * (2 * N) + place * 16 + tl.arange(0, 16)[:, None]
    store_bytes(q, values, N, (token < M)[None, :])
    tl.store(ys_ptr + token * (N // 16) + place, scale, mask=token < M)
    tl.store(ym_ptr + token * (N // 16) + place, scale * tl.sum(q, axis=0), mask=token < M)


@triton.jit
def _segment(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, program, num_rows, y_ptr, stride_y, half_ptr, factors_ptr, x_ptr,
    xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NORM: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    if is_float(FMT):  # one row a program, on the ordinary units
        row = program + tl.zeros((1, 1), tl.int32)
        tiles = first_tiles(FMT, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS, W * 32, 1)
        if PDL:
            gdc_wait()
        totals = dot_rows(FMT, tiles, q_ptr, h_ptr, s_ptr, d_ptr, row, x_ptr, xs_ptr, xm_ptr, xp_ptr, COLS, M, W * 32,
                          1,
                          NATIVE)
        for m in tl.static_range(M):
            y = totals[m]
            if NORM:
                y = y * rms_factor(ss_ptr + m * (COLS // 16), tl.arange(0, 1) * 0, eps, COLS)[:, None]
            tl.store(y_ptr + m * stride_y + row, y)
    else:
        first_row = tl.minimum(program * 16, num_rows - 16)
        rows = warp_rows(first_row, W)
        tile = first_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS, W)
        if PDL:
            gdc_wait()
        y = mma_rows(FMT, tile, q_ptr, h_ptr, s_ptr, d_ptr, rows, half_ptr, COLS, W, NATIVE)
        y = y * tl.load(factors_ptr + tl.arange(0, 8))[None, :]
        token = tl.arange(0, 8)[None, :]
        tl.store(y_ptr + token * stride_y + first_row + tl.arange(0, 16)[:, None], y, mask=token < M)


@triton.jit
def _few_rows_gemv_kernel(
    q0_ptr, h0_ptr, s0_ptr, d0_ptr, n0, q1_ptr, h1_ptr, s1_ptr, d1_ptr, n1, q2_ptr, h2_ptr, s2_ptr, d2_ptr, n2,
    half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, y_ptr, stride_y, eps, p1, p2, FMT0: tl.constexpr,
    FMT1: tl.constexpr, FMT2: tl.constexpr, COLS: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NORM: tl.constexpr,
    NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    program = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    if FMT2 >= 0:
        if program < p2:
            _segment(FMT2, q2_ptr, h2_ptr, s2_ptr, d2_ptr, program, n2, y_ptr + n0 + n1, stride_y,
                     half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS, M, W, NORM, NATIVE,
                     PDL)
    if FMT1 >= 0:
        if program >= p2 and program < p2 + p1:
            _segment(FMT1, q1_ptr, h1_ptr, s1_ptr, d1_ptr, program - p2, n1, y_ptr + n0, stride_y,
                     half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS, M, W, NORM, NATIVE,
                     PDL)
    if program >= p2 + p1:
        _segment(FMT0, q0_ptr, h0_ptr, s0_ptr, d0_ptr, program - p2 - p1, n0, y_ptr, stride_y,
                 half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS, M, W, NORM, NATIVE,
                 PDL)


@triton.jit
def _few_rows_residual_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, half_ptr, factors_ptr, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr,
    FMT: tl.constexpr, COLS: tl.constexpr, N: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    rows = warp_rows(block * 16, W)
    tile = first_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS, W)
    token = tl.arange(0, 8)
    here = token[None, :] * N + block * 16 + tl.arange(0, 16)[:, None]
    real = (token < M)[None, :]
    norm = tl.load(w_ptr + block * 16 + tl.arange(0, 16))[:, None]
    if PDL:
        gdc_wait()
    before = tl.load(residual_ptr + here, mask=real, other=0.0)
    y = mma_rows(FMT, tile, q_ptr, h_ptr, s_ptr, d_ptr, rows, half_ptr, COLS, W, NATIVE)
    y = y * tl.load(factors_ptr + tl.arange(0, 8))[None, :] + before
    tl.store(residual_ptr + here, y, mask=real)
    tl.store(ss_ptr + token * (N // 16) + block, tl.sum(y * y, axis=0), mask=token < M)
    y = y * norm
    tl.store(yp_ptr + here, y, mask=real)
    _quantize_columns(y, block, v_ptr, ys_ptr, ym_ptr, N, M)


@triton.jit
def _few_rows_swiglu_kernel(
    gq_ptr, gh_ptr, gs_ptr, gd_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr, half_ptr, factors_ptr, v_ptr, ys_ptr, ym_ptr,
    FMT: tl.constexpr, COLS: tl.constexpr, FFN: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    rows = warp_rows(block * 16, W)
    gate_tile = first_group(FMT, gq_ptr, gh_ptr, gs_ptr, gd_ptr, rows, COLS, W)
    up_tile = first_group(FMT, uq_ptr, uh_ptr, us_ptr, ud_ptr, rows, COLS, W)
    if PDL:
        gdc_wait()
    factor = tl.load(factors_ptr + tl.arange(0, 8))[None, :]
    gate, up = mma_two(FMT, gate_tile, gq_ptr, gh_ptr, gs_ptr, gd_ptr, up_tile, uq_ptr, uh_ptr, us_ptr, ud_ptr, rows,
                       half_ptr, COLS, W, NATIVE)
    gate = gate * factor
    _quantize_columns(gate / (1.0 + tl.exp(-gate)) * (up * factor), block, v_ptr, ys_ptr, ym_ptr, FFN, M)


def _warps(num_cols: int) -> int:
    """Warps that share a row's groups of columns: many for a long row, else so that each has as many."""
    groups = num_cols // 256
    if groups >= 32:
        return 8
    return next((warps for warps in (8, 4) if groups % warps == 0 and groups >= 2 * warps), 4)


def _options(pdl: bool, num_warps: int) -> dict[str, object]:
    return {"PDL": pdl, "NATIVE": has_dp4a(), "num_warps": num_warps, **({"launch_pdl": True} if pdl else {})}


def few_rows_gemv(
    x: QuantActivation, weights: Sequence[QuantWeight], eps: float | None, out: Tensor, pdl: bool,
    num_warps: int | None = None,
) -> None:
    """`quant_gemv` where `fits` says so."""
    num_warps = num_warps or _warps(x.num_cols)
    programs = [w.num_rows if w.format.is_float else -(-w.num_rows // 16) for w in weights]
    for kind in {w.format for w in weights if w.format.is_float}:
        num_warps = min(num_warps, row_tile(kind, x.num_cols, 1, 1, 1, 32 * num_warps).chunks // 32)
    missing = 3 - len(weights)
    padded = [*weights, *[weights[0]] * missing]
    formats = [int(w.format) for w in weights] + [-1] * missing
    planes = [argument for w in padded for argument in (w.quants, w.high, w.scales, w.supers, w.num_rows)]
    half = half_rows(x, next(w for w in weights if not w.format.is_float), eps, pdl=pdl)
    _few_rows_gemv_kernel[(sum(programs),)](
        *planes, half.values.view(torch.int32), half.factors, x.values.view(torch.int32), x.scales, x.sums, x.plain,
        x.square_sums, out, out.stride(0),
        0.0 if eps is None else eps, sum(programs[1:2]), sum(programs[2:]), FMT0=formats[0], FMT1=formats[1],
        FMT2=formats[2], COLS=x.num_cols, M=x.num_tokens, W=num_warps, NORM=eps is not None,
        **_options(pdl, num_warps),
    )


def few_rows_residual(
    x: QuantActivation, weight: QuantWeight, residual: Tensor, norm_weight: Tensor, out: QuantActivation, group: int,
    eps: float, pdl: bool, num_warps: int | None = None,
) -> None:
    """`quant_gemv_residual` where `fits` says so."""
    num_warps = num_warps or _warps(x.num_cols)
    half = half_rows(x, weight, eps if group else None, group, pdl)
    _few_rows_residual_kernel[(weight.num_rows // 16,)](
        weight.quants, weight.high, weight.scales, weight.supers, half.values.view(torch.int32), half.factors, residual,
        norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums, FMT=int(weight.format),
        COLS=x.num_cols, N=weight.num_rows, M=x.num_tokens, W=num_warps, **_options(pdl, num_warps),
    )


def few_rows_swiglu(
    x: QuantActivation, gate: QuantWeight, up: QuantWeight, out: QuantActivation, eps: float, pdl: bool,
    num_warps: int | None = None,
) -> None:
    """`quant_swiglu` where `fits` says so."""
    num_warps = num_warps or _warps(x.num_cols)
    planes = [p for w in (gate, up) for p in (w.quants, w.high, w.scales, w.supers)]
    half = half_rows(x, gate, eps, pdl=pdl)
    _few_rows_swiglu_kernel[(gate.num_rows // 16,)](
        *planes, half.values.view(torch.int32), half.factors, out.values, out.scales, out.sums, FMT=int(gate.format),
        COLS=x.num_cols, FFN=gate.num_rows, M=x.num_tokens, W=num_warps,
        **_options(pdl, num_warps),
    )
