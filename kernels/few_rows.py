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

from kernels.activation import LEVELS, TINY, rms_factor, row_factors, store_bytes
from kernels.half_rows import half_arguments, half_hint, half_place, half_rows, store_half
from kernels.launch import has_dp4a, row_tile
from kernels.quant_dot import dot_rows, first_tiles
from kernels.quant_format import HalfRows, QuantActivation, QuantFormat, QuantWeight
from kernels.quant_mma import first_group, first_groups, first_tokens, mma_rows, mma_two, warp_rows
from kernels.quant_unpack import is_float
from kernels.warp_sums import result_tokens

MIN_ROWS, MAX_ROWS = 4, 8  # fewer were faster on the vector units of an H200 (docs/performance.md)


def order(num_tokens: int, weights: Sequence[QuantWeight]) -> bool | None:
    """`HalfRows.is_wide` of the rows that matrices with one launch want; None: these kernels do not take them."""
    quantised = [w for w in weights if not w.format.is_float]
    orders = {w.format == QuantFormat.Q8_0 for w in quantised}
    has_groups = all(w.num_cols % 256 == 0 and w.num_rows >= 16 for w in quantised)
    return orders.pop() if MIN_ROWS <= num_tokens <= MAX_ROWS and has_groups and len(orders) == 1 else None


def fits(x: QuantActivation, weights: Sequence[QuantWeight]) -> bool:
    """Whether these kernels should take the product: four to eight rows, whole groups of columns."""
    return order(x.num_tokens, weights) is not None


@triton.jit
def _row_factors(
    factors_ptr, ss_ptr, eps, hints_ptr, is_first, COLS: tl.constexpr, M: tl.constexpr, NORM: tl.constexpr,
    T: tl.constexpr,
):
    """Factors of 8 rows, [T] f32; NORM: the norm's are still missing, and the first program leaves the next hints."""
    token = tl.arange(0, T)
    factor = tl.load(factors_ptr + token % 8)
    if NORM:
        norm = row_factors(ss_ptr, eps, COLS, M, T)
        factor *= norm
        if is_first:
            tl.store(hints_ptr + token, half_hint(norm), mask=token < M)
    return factor


@triton.jit
def _places(T: tl.constexpr, first_row, stride):
    """Offsets of 16 columns of every token, [T, 16]."""
    return tl.arange(0, T)[:, None] % 8 * stride + first_row + tl.arange(0, 16)[None, :]


@triton.jit
def _store_totals(totals, target, M: tl.constexpr):
    """One number a token, [T], to addresses [T]; each by a thread that has it."""
    column = tl.arange(0, 16)[None, :]
    token = tl.arange(0, totals.shape[0])[:, None]
    tl.store(target[:, None] + column, totals[:, None] + column * 0.0, mask=(column == 0) & (token < M))


@triton.jit
def _quantize_columns(x, block, v_ptr, ys_ptr, ym_ptr, N: tl.constexpr, M: tl.constexpr):
    """Block number `block` of every token's row: its 16 values x [T, 16] as integers, scale and scaled sum."""
    token = tl.arange(0, x.shape[0])
    place = (block % 2) * (N // 32) + block // 2
    amax = tl.max(tl.abs(x), axis=1)
    scale = amax / LEVELS
    inverse = LEVELS / tl.where(amax > TINY, amax, TINY)
    q = tl.floor(x * inverse[:, None] + 0.5)
    store_bytes(q, v_ptr + _places(x.shape[0], place * 16, 2 * N), N, (token < M)[:, None])
    _store_totals(scale, ys_ptr + token * (N // 16) + place, M)
    _store_totals(scale * tl.sum(q, axis=1), ym_ptr + token * (N // 16) + place, M)


@triton.jit
def _store_columns(numbers, block, half_ptr, FORM: tl.constexpr, M: tl.constexpr):
    """Block number `block` of every token's row, [T, 16], as f16."""
    token = tl.arange(0, numbers.shape[0])[:, None]
    column = tl.arange(0, 16)[None, :]
    store_half(numbers, half_ptr + half_place(block, column, token % 8, FORM == 1), (column >= 0) & (token < M))


@triton.jit
def _segment(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, program, num_rows, y_ptr, stride_y, half_ptr, factors_ptr, x_ptr,
    xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, hints_ptr, COLS: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    NORM: tl.constexpr, BARE: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    if is_float(FMT):  # one row a program, on the ordinary units
        row = program + tl.zeros((1, 1), tl.int32)
        tiles = first_tiles(FMT, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS, W * 32, 1)
        if PDL:
            gdc_wait()
        totals = dot_rows(
            FMT, tiles, q_ptr, h_ptr, s_ptr, d_ptr, row, x_ptr, xs_ptr, xm_ptr, xp_ptr, COLS, M, W * 32, 1, NATIVE
        )
        for m in tl.static_range(M):
            y = totals[m]
            if NORM:
                y = y * rms_factor(ss_ptr + m * (COLS // 16), tl.arange(0, 1) * 0, eps, COLS)[:, None]
            tl.store(y_ptr + m * stride_y + row, y)
    else:
        T: tl.constexpr = result_tokens(W, NATIVE)
        first_row = tl.minimum(program * 16, num_rows - 16)
        rows = warp_rows(first_row, W)
        tiles = first_groups(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS, W)
        if PDL:
            gdc_wait()
        tokens = first_tokens(half_ptr, COLS, W)
        factor = _row_factors(factors_ptr, ss_ptr, eps, hints_ptr, program == 0, COLS, M, BARE and NORM, T)
        y = mma_rows(FMT, tiles, tokens, q_ptr, h_ptr, s_ptr, d_ptr, rows, half_ptr, COLS, W, NATIVE)
        y = y * factor[:, None]
        tl.store(y_ptr + _places(T, first_row, stride_y), y, mask=(tl.arange(0, T) < M)[:, None])


@triton.jit
def _few_rows_gemv_kernel(
    q0_ptr, h0_ptr, s0_ptr, d0_ptr, n0, q1_ptr, h1_ptr, s1_ptr, d1_ptr, n1, q2_ptr, h2_ptr, s2_ptr, d2_ptr, n2,
    half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, y_ptr, stride_y, eps, p1, p2, hints_ptr,
    FMT0: tl.constexpr,
    FMT1: tl.constexpr, FMT2: tl.constexpr, COLS: tl.constexpr, M: tl.constexpr, W: tl.constexpr, NORM: tl.constexpr,
    BARE: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """BARE: the f16 rows come without their norm's factors; what the next ones need is left at hints_ptr."""
    program = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    if FMT2 >= 0:
        if program < p2:
            _segment(FMT2, q2_ptr, h2_ptr, s2_ptr, d2_ptr, program, n2, y_ptr + n0 + n1, stride_y,
                     half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, hints_ptr, COLS, M, W, NORM,
                     BARE, NATIVE, PDL)
    if FMT1 >= 0:
        if program >= p2 and program < p2 + p1:
            _segment(FMT1, q1_ptr, h1_ptr, s1_ptr, d1_ptr, program - p2, n1, y_ptr + n0, stride_y,
                     half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, hints_ptr, COLS, M, W, NORM,
                     BARE, NATIVE, PDL)
    if program >= p2 + p1:
        _segment(FMT0, q0_ptr, h0_ptr, s0_ptr, d0_ptr, program - p2 - p1, n0, y_ptr, stride_y,
                 half_ptr, factors_ptr, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, hints_ptr, COLS, M, W, NORM, BARE,
                 NATIVE, PDL)


@triton.jit
def _few_rows_residual_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, half_ptr, factors_ptr, residual_ptr, w_ptr, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr,
    yh_ptr, yf_ptr, hints_ptr, FMT: tl.constexpr, COLS: tl.constexpr, N: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    FORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    block = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    rows = warp_rows(block * 16, W)
    tiles = first_groups(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS, W)
    T: tl.constexpr = result_tokens(W, NATIVE)
    token = tl.arange(0, T)
    real = token < M
    here = _places(T, block * 16, N)
    norm = tl.load(w_ptr + block * 16 + tl.arange(0, 16))[None, :]
    if PDL:
        gdc_wait()
    tokens = first_tokens(half_ptr, COLS, W)
    before = tl.load(residual_ptr + here, mask=real[:, None], other=0.0)
    factor = tl.load(factors_ptr + token % 8)
    if FORM >= 0:
        hint = tl.load(hints_ptr + token % 8)
    y = mma_rows(FMT, tiles, tokens, q_ptr, h_ptr, s_ptr, d_ptr, rows, half_ptr, COLS, W, NATIVE)
    y = y * factor[:, None] + before
    tl.store(residual_ptr + here, y, mask=real[:, None])
    _store_totals(tl.sum(y * y, axis=1), ss_ptr + token * (N // 16) + block, M)
    y = y * norm
    tl.store(yp_ptr + here, y, mask=real[:, None])
    _quantize_columns(y, block, v_ptr, ys_ptr, ym_ptr, N, M)
    if FORM >= 0:
        _store_columns(y * hint[:, None], block, yh_ptr, FORM, M)
        if block == 0:
            tl.store(yf_ptr + token, 1.0 / hint, mask=real)


@triton.jit
def _few_rows_swiglu_kernel(
    gq_ptr, gh_ptr, gs_ptr, gd_ptr, uq_ptr, uh_ptr, us_ptr, ud_ptr, half_ptr, factors_ptr, hints_ptr, ss_ptr, eps,
    v_ptr, ys_ptr, ym_ptr, yh_ptr, yf_ptr, y_factor, FMT: tl.constexpr, COLS: tl.constexpr, FFN: tl.constexpr,
    M: tl.constexpr, W: tl.constexpr, BARE: tl.constexpr, FORM: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    """BARE: as in `_few_rows_gemv_kernel`; FORM >= 0: only f16 rows are made, of h times y_factor."""
    block = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    rows = warp_rows(block * 16, W)
    gate_tile = first_group(FMT, gq_ptr, gh_ptr, gs_ptr, gd_ptr, rows, COLS, W)
    up_tile = first_group(FMT, uq_ptr, uh_ptr, us_ptr, ud_ptr, rows, COLS, W)
    if PDL:
        gdc_wait()
    gate, up = mma_two(FMT, gate_tile, gq_ptr, gh_ptr, gs_ptr, gd_ptr, up_tile, uq_ptr, uh_ptr, us_ptr, ud_ptr, rows,
                       half_ptr, COLS, W, NATIVE)
    factor = _row_factors(factors_ptr, ss_ptr, eps, hints_ptr, block == 0, COLS, M, BARE, gate.shape[0])[:, None]
    gate = gate * factor
    h = gate / (1.0 + tl.exp(-gate)) * (up * factor)
    if FORM >= 0:
        _store_columns(h * y_factor, block, yh_ptr, FORM, M)
    else:
        _quantize_columns(h, block, v_ptr, ys_ptr, ym_ptr, FFN, M)
    if block == 0:
        if FORM >= 0:
            tl.store(yf_ptr + tl.arange(0, 8), tl.zeros((8,), tl.float32) + 1.0 / y_factor)


def _warps(num_cols: int) -> int:
    """Warps that share a row's groups of columns: many for a long row, else so that each has as many."""
    groups = num_cols // 256
    if groups >= 32:
        return 8
    return next((warps for warps in (8, 4) if groups % warps == 0 and groups >= 2 * warps), 4)


def _options(pdl: bool, num_warps: int) -> dict[str, object]:
    return {"PDL": pdl, "NATIVE": has_dp4a(), "num_warps": num_warps, **({"launch_pdl": True} if pdl else {})}


def _half_of(
    x: QuantActivation, weight: QuantWeight, eps: float | None, group: int, pdl: bool
) -> tuple[HalfRows, bool]:
    """(x as f16 rows, whether without the norm's factors): what its maker left, else made here."""
    if x.half is not None and x.half.is_wide == (weight.format == QuantFormat.Q8_0) and group == 0:
        return x.half, True
    return half_rows(x, weight, eps, group, pdl), False


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
    half, is_bare = _half_of(x, next(w for w in weights if not w.format.is_float), eps, 0, pdl)
    _few_rows_gemv_kernel[(sum(programs),)](
        *planes, half.values.view(torch.int32), half.factors, x.values.view(torch.int32), x.scales, x.sums, x.plain,
        x.square_sums, out, out.stride(0),
        0.0 if eps is None else eps, sum(programs[1:2]), sum(programs[2:]), half.hints, FMT0=formats[0],
        FMT1=formats[1], FMT2=formats[2], COLS=x.num_cols, M=x.num_tokens, W=num_warps, NORM=eps is not None,
        BARE=is_bare, **_options(pdl, num_warps),
    )


def few_rows_residual(
    x: QuantActivation, weight: QuantWeight, residual: Tensor, norm_weight: Tensor, out: QuantActivation, group: int,
    eps: float, pdl: bool, num_warps: int | None = None,
) -> None:
    """`quant_gemv_residual` where `fits` says so."""
    num_warps = num_warps or _warps(x.num_cols)
    half, _ = _half_of(x, weight, eps if group else None, group, pdl)
    *emitted, form = half_arguments(out)
    _few_rows_residual_kernel[(weight.num_rows // 16,)](
        weight.quants, weight.high, weight.scales, weight.supers, half.values.view(torch.int32), half.factors, residual,
        norm_weight, out.values, out.scales, out.sums, out.plain, out.square_sums, *emitted,
        FMT=int(weight.format), COLS=x.num_cols, N=weight.num_rows, M=x.num_tokens, W=num_warps, FORM=form,
        **_options(pdl, num_warps),
    )


def few_rows_swiglu(
    x: QuantActivation, gate: QuantWeight, up: QuantWeight, out: QuantActivation, eps: float, pdl: bool,
    num_warps: int | None = None, half_factor: float = 1.0,
) -> None:
    """`quant_swiglu` where `fits` says so."""
    num_warps = num_warps or _warps(x.num_cols)
    planes = [p for w in (gate, up) for p in (w.quants, w.high, w.scales, w.supers)]
    half, is_bare = _half_of(x, gate, eps, 0, pdl)
    values, factors, _, form = half_arguments(out)
    _few_rows_swiglu_kernel[(gate.num_rows // 16,)](
        *planes, half.values.view(torch.int32), half.factors, half.hints, x.square_sums, eps, out.values,
        out.scales, out.sums, values, factors, half_factor, FMT=int(gate.format), COLS=x.num_cols, FFN=gate.num_rows,
        M=x.num_tokens, W=num_warps, BARE=is_bare, FORM=form,
        **_options(pdl, num_warps),
    )
