"""Device functions: unpack one 16-byte chunk of a quantised row per thread and multiply it with 16-bit activations.

Owns the arithmetic of every format; knows no grid. A tile is [T chunks, W, RT rows, 4 words]: lanes run along T, warps
along W, and a thread keeps RT rows, so that each load is 16 bytes, activations are read once for RT rows, and a row is
summed inside a warp.
Reference: kernels/reference/quant_weight.py (values), kernels/reference/quant_gemv.py (products).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.activation import group_factor

F32 = tl.constexpr(0)
F16 = tl.constexpr(1)
Q4_0 = tl.constexpr(2)
Q4_1 = tl.constexpr(3)
Q5_0 = tl.constexpr(6)
Q5_1 = tl.constexpr(7)
Q8_0 = tl.constexpr(8)
Q4_K = tl.constexpr(12)
Q5_K = tl.constexpr(13)
Q6_K = tl.constexpr(14)
IQ4_NL = tl.constexpr(20)
IQ4_XS = tl.constexpr(23)
BF16 = tl.constexpr(30)
MXFP4 = tl.constexpr(39)
NVFP4 = tl.constexpr(40)


# prmt lookup of the eight nibbles of $2 in the 16 bytes $3 $4 $5 $6: $0 low nibbles' values, $1 high nibbles'
_LOOKUP_ASM = tl.constexpr("""{ .reg .b32 a, s, l, h, t, u;
and.b32 a, $2, 0x77777777; and.b32 s, $2, 0x88888888; shr.u32 s, s, 1; or.b32 s, s, 0x32103210;
prmt.b32 l, $3, $4, a; prmt.b32 h, $5, $6, a; prmt.b32 t, l, h, s;
shr.u32 a, a, 16; shr.u32 s, s, 16;
prmt.b32 l, $3, $4, a; prmt.b32 h, $5, $6, a; prmt.b32 u, l, h, s;
prmt.b32 $0, t, u, 0x6420; prmt.b32 $1, t, u, 0x7531; }""")
_DOT_ASM = tl.constexpr("""{ .reg .s32 t;
dp4a.s32.s32 t, $1, $5, 0; dp4a.s32.s32 t, $2, $6, t; dp4a.s32.s32 t, $3, $7, t; dp4a.s32.s32 t, $4, $8, t;
shl.b32 t, t, 8;
dp4a.s32.s32 t, $1, $9, t; dp4a.s32.s32 t, $2, $10, t; dp4a.s32.s32 t, $3, $11, t; dp4a.s32.s32 $0, $4, $12, t; }""")


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
def _byte_products(a, b):
    products = _byte(a, 0) * _byte(b, 0) + _byte(a, 1) * _byte(b, 1)
    return products + _byte(a, 2) * _byte(b, 2) + _byte(a, 3) * _byte(b, 3)


@triton.jit
def dot_words(a, high, low, NATIVE: tl.constexpr):
    """Sum over the last axis of sixteen products of signed bytes a with integers 256 * high + low, as f32.

    NATIVE: dp4a, else shifts (interpreter, AMD).
    """
    if NATIVE:
        a0, a1, a2, a3 = split4(a)
        h0, h1, h2, h3 = split4(high)
        l0, l1, l2, l3 = split4(low)
        total = tl.inline_asm_elementwise(
            _DOT_ASM, "=r,r,r,r,r,r,r,r,r,r,r,r,r", [a0, a1, a2, a3, h0, h1, h2, h3, l0, l1, l2, l3],
            dtype=tl.int32, is_pure=True, pack=1,
        )
    else:
        total = tl.sum(256 * _byte_products(a, high) + _byte_products(a, low), axis=3)
    return total.to(tl.float32)


@triton.jit
def _low_half(word):
    return (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high_half(word):
    return ((word >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _e4m3(byte):
    """Half of an unsigned E4M3 number, as f32: an f16 with an exponent 8 too small. 0x7F stands for zero."""
    value = ((byte & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.where(byte == 0x7F, 0.0, value * 128.0)


@triton.jit
def _pick(nibble, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr):
    """Byte `nibble` of the 16-byte table, as the low byte of a word."""
    word = tl.where(nibble < 4, T0, tl.where(nibble < 8, T1, tl.where(nibble < 12, T2, T3))).to(tl.int32)
    return (word >> (8 * (nibble & 3))) & 0xFF


@triton.jit
def _table(q, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr, NATIVE: tl.constexpr):
    """Words of eight nibbles -> (values of the low nibbles, values of the high nibbles), four bytes each."""
    if NATIVE:
        t0 = tl.full(q.shape, T0, tl.int32)
        t1 = tl.full(q.shape, T1, tl.int32)
        t2 = tl.full(q.shape, T2, tl.int32)
        t3 = tl.full(q.shape, T3, tl.int32)
        low, high = tl.inline_asm_elementwise(
            _LOOKUP_ASM, "=&r,=&r,r,r,r,r,r", [q, t0, t1, t2, t3], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low = tl.zeros_like(q)
        high = tl.zeros_like(q)
        for i in tl.static_range(4):
            low |= _pick((q >> (8 * i)) & 15, T0, T1, T2, T3) << (8 * i)
            high |= _pick((q >> (8 * i + 4)) & 15, T0, T1, T2, T3) << (8 * i)
    return low, high


@triton.constexpr_function
def is_float(fmt):
    return fmt in (0, 1, 30)


@triton.constexpr_function
def has_minimum(fmt):
    return fmt in (2, 3, 6, 7, 12, 13)


@triton.constexpr_function
def chunk_columns(fmt):
    """Columns behind a 16-byte load: quant_format.QuantFormat.chunk."""
    return {0: 4, 1: 8, 30: 8, 8: 16}.get(fmt, 32)


@triton.jit
def load_tile(FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, COLS: tl.constexpr):
    """A tile as it lies in memory, for `unpack_tile`; issue it early, it depends on nothing but addresses.

    rows:    [1 or T, W, RT] int64
    chunk:   [T] int; chunk_columns each
    returns  (quants [T, W, RT, 4] or plain numbers [T, W, RT, columns], high bits, more high bits, scales, supers),
             each of the last four [T, W, RT] or, where the format has none, the quants again
    """
    place = chunk[:, None, None]
    ITEMS: tl.constexpr = chunk_columns(FMT) if is_float(FMT) else 4  # of the plane in a chunk
    ROW: tl.constexpr = COLS // chunk_columns(FMT) * ITEMS
    q = tl.load(q_ptr + (rows * ROW + place * ITEMS)[:, :, :, None] + tl.arange(0, ITEMS)[None, None, None, :])
    bits = q
    more_bits = q
    scale = q
    super_scale = q
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        bits = tl.load(h_ptr + tl.max_contiguous(rows * (COLS // 32) + place, [1, 1, 1]))
    if FMT == Q6_K:
        bits_ptr = h_ptr + tl.max_contiguous(rows * (COLS // 16) + place * 2, [1, 1, 1])
        bits = tl.load(bits_ptr)
        more_bits = tl.load(bits_ptr + 1)
    # The coalescer must not see that lanes' scales are neighbours: it would vectorise their loads, and they would have
    # to be exchanged through shared memory to meet their quants.
    if not is_float(FMT):
        block = tl.max_contiguous(rows * (COLS // 32) + (place // 2 if FMT == Q8_0 else place), [1, 1, 1])
        scale = tl.load(s_ptr + block)
    if FMT == Q4_K or FMT == Q5_K or FMT == Q6_K or FMT == IQ4_XS:
        super_scale = tl.load(d_ptr + tl.max_contiguous(rows * (COLS // 256) + place // 8, [1, 1, 1]))
    if FMT == NVFP4:
        super_scale = tl.load(d_ptr + tl.max_contiguous(rows + place * 0, [1, 1, 1]))
    return q, bits, more_bits, scale, super_scale


@triton.jit
def unpack_words(FMT: tl.constexpr, tile, NATIVE: tl.constexpr):
    """(words of columns 0..15, words of columns 16..31) of a tile, [T, W, RT, 4] int32, four integers to a word;
    for Q8_0 twice the same; plain numbers as they are."""
    q = tile[0]
    word = tl.arange(0, 4)[None, None, None, :]
    if FMT == Q8_0 or is_float(FMT):
        low = q
        high = q
    elif FMT == IQ4_NL or FMT == IQ4_XS:
        low, high = _table(q, -1079142271, -152379953, 0x26190D01, 0x71594535, NATIVE)
    elif FMT == MXFP4 or FMT == NVFP4:
        low, high = _table(q, 0x03020100, 0x0C080604, -33620224, -185009412, NATIVE)
    else:
        low = q & 0x0F0F0F0F
        high = (q >> 4) & 0x0F0F0F0F
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        bits = tile[1][:, :, :, None]
        low |= ((bits >> word) & 0x01010101) << 4
        high |= ((bits >> (4 + word)) & 0x01010101) << 4
    if FMT == Q6_K:
        low |= ((tile[1][:, :, :, None] >> (2 * word)) & 0x03030303) << 4
        high |= ((tile[2][:, :, :, None] >> (2 * word)) & 0x03030303) << 4
    return low, high


@triton.jit
def unpack_scales(FMT: tl.constexpr, tile):
    """(scale of columns 0..15, scale of 16..31, minimum), [T, W, RT] f32: value = scale * integer - minimum."""
    raw = tile[3]
    if FMT == Q4_1 or FMT == Q5_1:
        scale = _low_half(raw)
        scale_high = scale
        minimum = -_high_half(raw)
    elif FMT == Q4_K or FMT == Q5_K:
        raw = raw.to(tl.int32)
        scale = _low_half(tile[4]) * (raw & 0xFF).to(tl.float32)
        scale_high = scale
        minimum = _high_half(tile[4]) * ((raw >> 8) & 0xFF).to(tl.float32)
    elif FMT == Q6_K:
        d = tile[4].to(tl.float32)
        raw = raw.to(tl.int32)
        scale = d * ((raw << 24) >> 24).to(tl.float32)
        scale_high = d * (raw >> 8).to(tl.float32)
        minimum = scale
    elif FMT == IQ4_XS:
        scale = tile[4].to(tl.float32) * raw.to(tl.float32)
        scale_high = scale
        minimum = scale
    elif is_float(FMT):
        scale = raw
        scale_high = raw
        minimum = raw
    elif FMT == NVFP4:
        raw = raw.to(tl.int32)
        scale = _e4m3(raw & 0xFF) * tile[4]
        scale_high = _e4m3((raw >> 8) & 0xFF) * tile[4]
        minimum = scale
    elif FMT == MXFP4:
        scale = (tl.maximum(raw.to(tl.int32) - 1, 0) << 23).to(tl.float32, bitcast=True)
        scale_high = scale
        minimum = scale
    else:
        scale = raw.to(tl.float32)
        scale_high = scale
        minimum = scale * (8.0 if FMT == Q4_0 else 16.0)
    return scale, scale_high, minimum


@triton.jit
def _dot_block(words, x_words, COLS: tl.constexpr, NATIVE: tl.constexpr):
    """Products of 16 columns: words [T, W, RT, 4], x_words [T, W, 1, 4] addresses in the plane of high bytes."""
    high = tl.broadcast_to(tl.load(x_words), words.shape)
    low = tl.broadcast_to(tl.load(x_words + COLS // 4), words.shape)
    return dot_words(words, high, low, NATIVE)


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
    COLS: tl.constexpr, NATIVE: tl.constexpr,
):
    word = tl.arange(0, 4)[None, None, None, :] + zero[None, :, None, None]
    if FMT == Q8_0:
        chunk = (chunk % 2) * (COLS // 32) + chunk // 2
    place = tl.max_contiguous((x_row * (COLS // 16) + chunk)[:, None, None] + zero[None, :, None], [1, 1, 1])
    x_words = x_ptr + (x_row * (COLS // 2) + chunk * 4)[:, None, None, None] + word
    first = _dot_block(low, x_words, COLS, NATIVE) * tl.load(xs_ptr + place)
    if FMT == Q8_0:
        result = first * scale
    else:
        odd = place + COLS // 32
        second = _dot_block(high, x_words + COLS // 8, COLS, NATIVE) * tl.load(xs_ptr + odd)
        if FMT == Q6_K:
            first -= 32.0 * tl.load(xm_ptr + place)
            second -= 32.0 * tl.load(xm_ptr + odd)
            result = first * scale + second * scale_high
        elif FMT == NVFP4:
            result = first * scale + second * scale_high
        elif FMT == IQ4_NL or FMT == IQ4_XS or FMT == MXFP4:
            result = (first + second) * scale
        else:
            sums = tl.load(xm_ptr + place) + tl.load(xm_ptr + odd)
            result = (first + second) * scale - minimum * sums
    return result


@triton.jit
def dot_chunk(
    FMT: tl.constexpr, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, chunk, x_row, zero,
    COLS: tl.constexpr, NATIVE: tl.constexpr,
):
    """Products of a tile, unpacked, with one activation row.

    x_ptr:   the rows' two planes of bytes as int32 words; xs_ptr, xm_ptr: their scales and scaled sums per 16 columns
    x_row:   [T] int, the activation row that each chunk meets
    zero:    [W] zeros, which give each warp its own copy of the activations (no exchange between warps)
    returns  [T, W, RT] f32
    """
    if is_float(FMT):
        result = _dot_floats(FMT, low, x_ptr, xs_ptr, chunk, x_row, zero, COLS)
    else:
        result = _dot_integers(FMT, low, high, scale, scale_high, minimum, x_ptr, xs_ptr, xm_ptr, chunk, x_row, zero,
                               COLS, NATIVE)
    return result


@triton.jit
def first_tiles(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS: tl.constexpr, T: tl.constexpr, DEPTH: tl.constexpr
):
    """The first DEPTH tiles of rows `row` [W, RT], which `dot_rows` consumes; they need no activation."""
    rows = row[None, :, :].to(tl.int64)
    tiles = ()
    for step in tl.static_range(DEPTH):
        tiles = tiles + (load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, step * T + tl.arange(0, T), COLS),)
    return tiles


@triton.jit
def _add_tile(
    FMT: tl.constexpr, sums, tile, chunk, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr, eps, COLS: tl.constexpr,
    M: tl.constexpr, GROUP: tl.constexpr, zero, NATIVE: tl.constexpr,
):
    """sums[m] + (tile times activation row m), [T, W, RT] f32 each."""
    new_sums = ()
    if FMT == F32 and xp_ptr is not None:
        column = (chunk * 4)[:, None, None, None] + tl.arange(0, 4)[None, None, None, :] + zero[None, :, None, None]
        for m in tl.static_range(M):
            x = tl.load(xp_ptr + m * COLS + column)
            new_sums = new_sums + (sums[m] + tl.sum(tile[0] * x, axis=3),)
    else:
        low, high = unpack_words(FMT, tile, NATIVE)
        scale, scale_high, minimum = unpack_scales(FMT, tile)
        for m in tl.static_range(M):
            product = dot_chunk(
                FMT, low, high, scale, scale_high, minimum, x_ptr + m * (COLS // 2), xs_ptr + m * (COLS // 16),
                xm_ptr + m * (COLS // 16), chunk, tl.zeros_like(chunk), zero, COLS, NATIVE,
            )
            if GROUP > 0:
                factor = group_factor(ss_ptr + m * (COLS // 16), chunk, zero, eps, chunk_columns(FMT), GROUP)
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
    positions:
    neither M nor the grid changes a bit of the result.
    xp_ptr: the plain activations, for F32 matrices; None: they take the integers too.
    GROUP > 0: the activation's columns carry an RMS factor per GROUP columns, from their partial sums at ss_ptr.
    """
    W: tl.constexpr = row.shape[0]
    RT: tl.constexpr = row.shape[1]
    STEPS: tl.constexpr = COLS // chunk_columns(FMT) // T
    zero = tl.arange(0, W) * 0
    rows = row[None, :, :].to(tl.int64)
    chunk = tl.arange(0, T)
    sums = ()
    for _ in tl.static_range(M):
        sums = sums + (tl.zeros((T, W, RT), tl.float32),)
    if STEPS * M <= 8:
        for step in tl.static_range(STEPS):
            if step + DEPTH < STEPS:
                tiles = tiles + (
                    load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, (step + DEPTH) * T + chunk, COLS),
                )
            sums = _add_tile(FMT, sums, tiles[step], step * T + chunk, x_ptr, xs_ptr, xm_ptr, xp_ptr, ss_ptr,
                             eps, COLS, M, GROUP, zero, NATIVE)
    else:
        for start in tl.range(0, STEPS - STEPS % DEPTH, DEPTH):
            next_tiles = ()
            for ahead in tl.static_range(DEPTH):
                step = tl.minimum(start + DEPTH + ahead, STEPS - 1)
                next_tiles = next_tiles + (
                    load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, step * T + chunk, COLS),
                )
            for ahead in tl.static_range(DEPTH):
                sums = _add_tile(FMT, sums, tiles[ahead], (start + ahead) * T + chunk, x_ptr, xs_ptr, xm_ptr, xp_ptr,
                                 ss_ptr, eps, COLS, M, GROUP, zero, NATIVE)
            tiles = next_tiles
        for ahead in tl.static_range(STEPS % DEPTH):
            sums = _add_tile(FMT, sums, tiles[ahead], (STEPS - STEPS % DEPTH + ahead) * T + chunk, x_ptr, xs_ptr,
                             xm_ptr,
                             xp_ptr, ss_ptr, eps, COLS, M, GROUP, zero, NATIVE)
    totals = ()
    for m in tl.static_range(M):
        totals = totals + (tl.sum(sums[m], axis=0),)
    return totals
