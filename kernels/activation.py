"""Device functions: RMS factors of quantised activations, and the writing of such activations.

Owns the layout of `QuantActivation`'s planes on the writing side; knows no grid and no weights.
Reference: kernels/reference/quant_gemv.py (quantize_rows)
"""

from __future__ import annotations

import triton
import triton.language as tl

LEVELS = tl.constexpr(32639.0)  # quant_format.ACTIVATION_LEVELS
TINY = tl.constexpr(1e-30)  # quant_format.TINY_ACTIVATION


@triton.jit
def rms_factor(ss_ptr, zero, eps, COLS: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of one row from its COLS / 16 partial sums, once in each warp.

    zero:    [W] zeros
    returns  [W] f32
    """
    total = tl.zeros((32, zero.shape[0]), tl.float32)
    for start in tl.static_range(0, COLS // 16, 32):
        offs = tl.max_contiguous(start + tl.arange(0, 32)[:, None] + zero[None, :], [1, 1])
        total += tl.load(ss_ptr + offs, mask=offs < COLS // 16, other=0.0)
    return 1.0 / tl.sqrt(tl.sum(total, axis=0) / COLS + eps)


@triton.jit
def row_factors(ss_ptr, eps, COLS: tl.constexpr, M: tl.constexpr, T: tl.constexpr = 8):
    """The same of M rows, [T] f32, the work shared by a program's warps; T: 8, or 16 for all twice."""
    token = tl.arange(0, T)[:, None] % 8
    total = tl.zeros((T, 64), tl.float32)
    for start in tl.static_range(0, COLS // 16, 64):
        offs = start + tl.arange(0, 64)[None, :]
        total += tl.load(ss_ptr + token * (COLS // 16) + offs, mask=(offs < COLS // 16) & (token < M), other=0.0)
    return tl.rsqrt(tl.sum(total, axis=1) / COLS + eps)


@triton.jit
def group_factor(ss_ptr, chunk, zero, eps, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of the group of GROUP columns that each chunk of COLUMNS columns lies in, [T, W]
    f32."""
    BLOCKS: tl.constexpr = GROUP // 16
    INNER: tl.constexpr = 4 if BLOCKS >= 4 else BLOCKS
    first = (chunk * COLUMNS // GROUP * BLOCKS)[:, None, None, None] + zero[None, :, None, None]
    offs = first + (tl.arange(0, BLOCKS // INNER) * INNER)[None, None, :, None] + tl.arange(0, INNER)[None, None, None,
                                                                                                      :]
    total = tl.sum(tl.sum(tl.load(ss_ptr + offs), axis=3), axis=2)
    return tl.rsqrt(total / GROUP + eps)


@triton.jit
def store_bytes(q, target, COLS: tl.constexpr, mask=None):
    """Integers q, as floats, to the planes of high and low bytes; target: addresses in the first."""
    q = q.to(tl.int32)
    high = (q + 128) >> 8
    tl.store(target, high.to(tl.int8), mask=mask)
    tl.store(target + COLS, (q - (high << 8)).to(tl.int8), mask=mask)


@triton.jit
def quantize_block(x, block, v_ptr, xs_ptr, xm_ptr, COLS: tl.constexpr):
    """Write block number `block` of a row: its 16 values `x` as integers, their scale and their scaled sum.

    Even blocks of a row come first, then the odd ones, in all three planes.
    """
    place = (block % 2) * (COLS // 32) + block // 2
    amax = tl.max(tl.abs(x), axis=0)
    scale = amax / LEVELS
    inverse = LEVELS / tl.where(amax > TINY, amax, TINY)
    q = tl.floor(x * inverse + 0.5)
    store_bytes(q, v_ptr + place * 16 + tl.arange(0, 16), COLS)
    tl.store(xs_ptr + place, scale)
    tl.store(xm_ptr + place, scale * tl.sum(q, axis=0))


@triton.jit
def emit_block(
    x, block, norm, v_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, COLS: tl.constexpr,
):
    """Write block number `block` of a finished residual row as the next layer's input: weighted, plain and quantised.

    x, norm: [16] f32, the residual's values and the next norm's weights there
    The pointers are the row's planes of a `QuantActivation`.
    """
    offs = block * 16 + tl.arange(0, 16)
    weighted = x * norm
    tl.store(xp_ptr + offs, weighted)
    tl.store(ss_ptr + block, tl.sum(x * x, axis=0))
    quantize_block(weighted, block, v_ptr, xs_ptr, xm_ptr, COLS)


@triton.jit
def quantize_blocks(x, first_block, v_ptr, xs_ptr, xm_ptr, COLS: tl.constexpr, BLOCKS: tl.constexpr, real=None):
    """`quantize_block` for BLOCKS blocks from `first_block` on, those that are real; x: [16 * BLOCKS] f32."""
    x = tl.reshape(x, (BLOCKS, 16))
    block = first_block + tl.arange(0, BLOCKS)
    place = (block % 2) * (COLS // 32) + block // 2
    amax = tl.max(tl.abs(x), axis=1)
    scale = amax / LEVELS
    inverse = LEVELS / tl.where(amax > TINY, amax, TINY)
    q = tl.floor(x * inverse[:, None] + 0.5)
    rows = None if real is None else real[:, None]
    store_bytes(q, v_ptr + place[:, None] * 16 + tl.arange(0, 16)[None, :], COLS, rows)
    tl.store(xs_ptr + place, scale, mask=real)
    tl.store(xm_ptr + place, scale * tl.sum(q, axis=1), mask=real)


@triton.jit
def emit_blocks(
    y, norm, first_block, v_ptr, ys_ptr, ym_ptr, yp_ptr, ss_ptr, COLS: tl.constexpr, BLOCKS: tl.constexpr
):
    """`emit_block` for BLOCKS blocks from `first_block` on, those that the row has; y, norm: [16 * BLOCKS] f32."""
    offs = first_block * 16 + tl.arange(0, 16 * BLOCKS)
    weighted = y * norm
    tl.store(yp_ptr + offs, weighted, mask=offs < COLS)
    block = first_block + tl.arange(0, BLOCKS)
    real = block < COLS // 16
    tl.store(ss_ptr + block, tl.sum(tl.reshape(y * y, (BLOCKS, 16)), axis=1), mask=real)
    quantize_blocks(weighted, first_block, v_ptr, ys_ptr, ym_ptr, COLS, BLOCKS, real)
