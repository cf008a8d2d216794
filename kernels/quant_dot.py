"""Device functions: unpacked chunks of quantised rows, one per thread, times 16-bit activations.

Owns the products of every format; knows no grid. A tile is [T chunks, W, RT rows, 4 words]: lanes run along T, warps
along W, and a thread keeps RT rows, so that each load is 16 bytes, activations are read once for RT rows, and a row is
summed inside a warp.
Reference: kernels/reference/quant_weight.py (values), kernels/reference/quant_gemv.py (products).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.activation import group_factor
from kernels.quant_unpack import (
    F32,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q6_K,
    Q8_0,
    chunk_columns,
    high_factor,
    is_float,
    load_tile,
    unpack_scales,
    unpack_words,
)

DOT = """{ .reg .s32 t;
dp4a.s32.s32 t, $1, $5, 0; dp4a.s32.s32 t, $2, $6, t; dp4a.s32.s32 t, $3, $7, t; dp4a.s32.s32 t, $4, $8, t;
shl.b32 t, t, 8;
dp4a.s32.s32 t, $1, $9, t; dp4a.s32.s32 t, $2, $10, t; dp4a.s32.s32 t, $3, $11, t; dp4a.s32.s32 $0, $4, $12, t; }"""
UNSIGNED_DOT = DOT.replace("dp4a.s32", "dp4a.u32")
_DOT_ASM = tl.constexpr(DOT)
_UNSIGNED_DOT_ASM = tl.constexpr(UNSIGNED_DOT)


@triton.jit
def _byte(word, INDEX: tl.constexpr):
    return (word << (24 - 8 * INDEX)) >> 24


@triton.jit
def split4(x):
    """[..., 4] -> its four columns; moves no data where a thread holds all four."""
    SHAPE: tl.constexpr = x.shape[:-1]
    first, second = tl.split(tl.reshape(x, SHAPE + [2, 2]))
    a, c = tl.split(first)
    b, d = tl.split(second)
    return a, b, c, d


@triton.jit
def _first_byte(word, INDEX: tl.constexpr, UNSIGNED: tl.constexpr):
    return (word >> (8 * INDEX)) & 0xFF if UNSIGNED else _byte(word, INDEX)


@triton.jit
def _byte_products(a, b, UNSIGNED: tl.constexpr):
    products = _first_byte(a, 0, UNSIGNED) * _byte(b, 0) + _first_byte(a, 1, UNSIGNED) * _byte(b, 1)
    return products + _first_byte(a, 2, UNSIGNED) * _byte(b, 2) + _first_byte(a, 3, UNSIGNED) * _byte(b, 3)


@triton.jit
def dot_words(a, high, low, NATIVE: tl.constexpr, UNSIGNED: tl.constexpr = False):
    """Sum over the last axis of sixteen products of bytes a, signed ones or UNSIGNED, with integers 256 * high + low,
    as f32.

    NATIVE: dp4a, else shifts (interpreter, AMD).
    """
    if NATIVE:
        a0, a1, a2, a3 = split4(a)
        h0, h1, h2, h3 = split4(high)
        l0, l1, l2, l3 = split4(low)
        total = tl.inline_asm_elementwise(
            _UNSIGNED_DOT_ASM if UNSIGNED else _DOT_ASM, "=r,r,r,r,r,r,r,r,r,r,r,r,r",
            [a0, a1, a2, a3, h0, h1, h2, h3, l0, l1, l2, l3],
            dtype=tl.int32, is_pure=True, pack=1,
        )
    else:
        total = tl.sum(256 * _byte_products(a, high, UNSIGNED) + _byte_products(a, low, UNSIGNED), axis=3)
    return total.to(tl.float32)


@triton.jit
def _dot_block(words, x_words, COLS: tl.constexpr, NATIVE: tl.constexpr, UNSIGNED: tl.constexpr = False):
    """Products of 16 columns: words [T, W, RT, 4], x_words [T, W, 1, 4] addresses in the plane of high bytes."""
    high = tl.broadcast_to(tl.load(x_words), words.shape)
    low = tl.broadcast_to(tl.load(x_words + COLS // 4), words.shape)
    return dot_words(words, high, low, NATIVE, UNSIGNED)


@triton.jit
def _dot_floats(FMT: tl.constexpr, weights, x_ptr, xs_ptr, chunk, x_row, zero, COLS: tl.constexpr):
    """Products of plain numbers [T, W, RT, columns] with an activation row's integers -> [T, W, RT] f32."""
    ITEMS: tl.constexpr = chunk_columns(FMT)
    block = chunk * ITEMS // 16
    place = (block % 2) * (COLS // 32) + block // 2
    byte = x_row * (2 * COLS) + place * 16 + chunk * ITEMS % 16
    item = tl.arange(0, ITEMS)[None, None, None, :] + zero[None, :, None, None]
    bytes_ptr = x_ptr.to(tl.pointer_type(tl.int8)) + byte[:, None, None, None] + item
    x = 256.0 * tl.load(bytes_ptr).to(tl.float32) + tl.load(bytes_ptr + COLS).to(tl.float32)
    scale = tl.load(xs_ptr + tl.max_contiguous((x_row * (COLS // 16) + place)[:, None, None] + zero[None, :, None],
                                               [1, 1, 1]))
    return tl.sum(weights.to(tl.float32) * x, axis=3) * scale


@triton.jit
def _dot_integers(
    FMT: tl.constexpr, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, chunk, x_row, zero,
    COLS: tl.constexpr, AHEAD: tl.constexpr, NATIVE: tl.constexpr,
):
    PLACES: tl.constexpr = AHEAD // 2 if FMT == Q8_0 else AHEAD
    word = tl.arange(0, 4)[None, None, None, :] + zero[None, :, None, None]
    if FMT == Q8_0:
        chunk = (chunk % 2) * (COLS // 32) + chunk // 2
    place = tl.max_contiguous((x_row * (COLS // 16) + chunk)[:, None, None] + zero[None, :, None], [1, 1, 1])
    x_words = x_ptr + (x_row * (COLS // 2) + chunk * 4)[:, None, None, None] + word + PLACES * 4
    xs_ptr = xs_ptr + place + PLACES
    xm_ptr = xm_ptr + place + PLACES
    first = _dot_block(low, x_words, COLS, NATIVE) * tl.load(xs_ptr)
    if FMT == Q8_0:
        result = first * scale
    else:
        ODD: tl.constexpr = COLS // 32
        FACTOR: tl.constexpr = high_factor(FMT)
        second = _dot_block(high, x_words + COLS // 8, COLS, NATIVE, FACTOR > 1) * (tl.load(xs_ptr + ODD) / FACTOR)
        if FMT == Q6_K:
            first -= 32.0 * tl.load(xm_ptr)
            second -= 32.0 * tl.load(xm_ptr + ODD)
            result = first * scale + second * scale_high
        elif FMT == NVFP4:
            result = first * scale + second * scale_high
        elif FMT == IQ4_NL or FMT == IQ4_XS or FMT == MXFP4:
            result = (first + second) * scale
        else:
            sums = tl.load(xm_ptr) + tl.load(xm_ptr + ODD)
            result = (first + second) * scale - minimum * sums
    return result


@triton.jit
def dot_chunk(
    FMT: tl.constexpr, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, chunk, x_row, zero,
    COLS: tl.constexpr, NATIVE: tl.constexpr, AHEAD: tl.constexpr = 0,
):
    """Products of a tile, unpacked in place, with one activation row.

    x_ptr:   the rows' two planes of bytes as int32 words; xs_ptr, xm_ptr: their scales and scaled sums per 16 columns
    x_row:   [T] int, the activation row that each chunk meets
    zero:    [W] zeros, which give each warp its own copy of the activations (no exchange between warps)
    AHEAD:   as in `load_tile`
    returns  [T, W, RT] f32
    """
    if is_float(FMT):
        result = _dot_floats(FMT, low, x_ptr, xs_ptr, chunk + AHEAD, x_row, zero, COLS)
    else:
        result = _dot_integers(FMT, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, chunk, x_row, zero,
                               COLS, AHEAD, NATIVE)
    return result


@triton.constexpr_function
def _split(ahead):
    """The multiple of 8 in it."""
    return ahead // 8 * 8


@triton.jit
def _load(FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, COLS: tl.constexpr, AHEAD: tl.constexpr):
    """`load_tile`, any number of chunks ahead."""
    FAR: tl.constexpr = _split(AHEAD)
    return load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk + (AHEAD - FAR), COLS, FAR)


@triton.jit
def first_tiles(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS: tl.constexpr, T: tl.constexpr, DEPTH: tl.constexpr
):
    """The first DEPTH tiles of rows `row` [W, RT], which `dot_rows` consumes; they need no activation."""
    rows = row[None, :, :].to(tl.int64)
    tiles = ()
    for step in tl.static_range(DEPTH):
        tiles = tiles + (_load(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, tl.arange(0, T), COLS, step * T),)
    return tiles


@triton.jit
def _add_tile(
    FMT: tl.constexpr, sums, tile, chunk, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS: tl.constexpr,
    M: tl.constexpr, GROUP: tl.constexpr, zero, NATIVE: tl.constexpr, AHEAD: tl.constexpr,
):
    """sums[m] + (tile times activation row m), [T, W, RT] f32 each; the tile's chunks are chunk + AHEAD."""
    new_sums = ()
    if FMT == F32 and xp_ptr is not None:
        column = (chunk * 4)[:, None, None, None] + tl.arange(0, 4)[None, None, None, :] + zero[None, :, None, None]
        for m in tl.static_range(M):
            x = tl.load(xp_ptr + column + (m * COLS + AHEAD * 4))
            new_sums = new_sums + (sums[m] + tl.sum(tile[0] * x, axis=3),)
    else:
        FAR: tl.constexpr = _split(AHEAD)
        near = chunk + (AHEAD - FAR)
        low, high = unpack_words(FMT, tile, NATIVE, True)
        scale, scale_high, minimum = unpack_scales(FMT, tile)
        for m in tl.static_range(M):
            product = dot_chunk(
                FMT, low, high, scale, scale_high, minimum, x_ptr + m * (COLS // 2), xs_ptr + m * (COLS // 16),
                xm_ptr + m * (COLS // 16), near, tl.zeros_like(near), zero, COLS, NATIVE, FAR,
            )
            if GROUP > 0:
                factor = group_factor(ss_ptr + m * (COLS // 16), chunk + AHEAD, zero, eps, chunk_columns(FMT), GROUP)
                product = product * factor[:, :, None]
            new_sums = new_sums + (sums[m] + product,)
    return new_sums


@triton.jit
def dot_rows(
    FMT: tl.constexpr, tiles, q_ptr, h_ptr, s_ptr, d_ptr, row, x_ptr, xs_ptr, xm_ptr, xp_ptr,
    COLS: tl.constexpr, M: tl.constexpr, T: tl.constexpr, DEPTH: tl.constexpr, NATIVE: tl.constexpr,
    GROUP: tl.constexpr = 0, ss_ptr=None, eps=0.0,
):
    """Rows `row` [W, RT] of a matrix times M activation rows -> a tuple of M tensors [W, RT] f32, without the norm
    factor.

    DEPTH tiles are on their way while one is consumed; `tiles` are the first of them. Summed in f32 over fixed
    positions: neither M nor the grid changes a bit of the result.
    xp_ptr: the plain activations, for F32 matrices; None: they take the integers too.
    GROUP > 0: the activation's columns carry an RMS factor per GROUP columns, from their partial sums at ss_ptr.
    """
    W: tl.constexpr = row.shape[0]
    RT: tl.constexpr = row.shape[1]
    STEPS: tl.constexpr = COLS // chunk_columns(FMT) // T
    # Steps [0, LOOP) in a loop that loads as far ahead as it computes, the rest without one.
    LOOP: tl.constexpr = 0 if STEPS * M <= 8 else (STEPS // DEPTH - 1) * DEPTH
    zero = tl.arange(0, W) * 0
    rows = row[None, :, :].to(tl.int64)
    chunk = tl.arange(0, T)
    sums = ()
    for _ in tl.static_range(M):
        sums = sums + (tl.zeros((T, W, RT), tl.float32),)
    for start in tl.range(0, LOOP, DEPTH):
        here = start * T + chunk
        next_tiles = ()
        for ahead in tl.static_range(DEPTH):
            next_tiles = next_tiles + (
                _load(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, here, COLS, (DEPTH + ahead) * T),
            )
        for ahead in tl.static_range(DEPTH):
            sums = _add_tile(FMT, sums, tiles[ahead], here, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS, M, GROUP,
                             zero, NATIVE, ahead * T)
        tiles = next_tiles
    for step in tl.static_range(LOOP, STEPS):
        if step + DEPTH < STEPS:
            tiles = tiles + (_load(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, COLS, (step + DEPTH) * T),)
        sums = _add_tile(FMT, sums, tiles[step - LOOP], chunk, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS, M,
                         GROUP, zero, NATIVE, step * T)
    totals = ()
    for m in tl.static_range(M):
        totals = totals + (tl.sum(sums[m], axis=0),)
    return totals
