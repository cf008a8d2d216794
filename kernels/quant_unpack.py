"""Device functions: a 16-byte chunk of a quantised row per thread, loaded and unpacked to integers and scales.

Owns the bytes of every format; knows no grid and no activation. A tile is [T chunks, W, RT rows, 4 words].
Reference: kernels/reference/quant_weight.py
"""

from __future__ import annotations

import triton
import triton.language as tl

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


@triton.jit
def _e4m3(byte):
    """Half of an unsigned E4M3 number, as f32: an f16 with an exponent 8 too small. 0x7F stands for zero."""
    value = ((byte & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.where(byte == 0x7F, 0.0, value * 128.0)


@triton.jit
def _low_half(word):
    return (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high_half(word):
    return ((word >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


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
def load_tile(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, chunk, COLS: tl.constexpr, AHEAD: tl.constexpr = 0
):
    """A tile as it lies in memory, for `unpack_tile`; issue it early, it depends on nothing but addresses.

    rows:    [1 or T, W, RT] int64
    chunk:   [T] int; chunk_columns each
    AHEAD:   chunks to add, a multiple of 8: a constant distance from addresses that other tiles have, too
    returns  (quants [T, W, RT, 4] or plain numbers [T, W, RT, columns], high bits, more high bits, scales, supers),
             each of the last four [T, W, RT] or, where the format has none, the quants again
    """
    place = chunk[:, None, None]
    ITEMS: tl.constexpr = chunk_columns(FMT) if is_float(FMT) else 4  # of the plane in a chunk
    ROW: tl.constexpr = COLS // chunk_columns(FMT) * ITEMS
    item = tl.arange(0, ITEMS)[None, None, None, :]
    q = tl.load(q_ptr + (rows * ROW + place * ITEMS)[:, :, :, None] + item + AHEAD * ITEMS)
    bits = q
    more_bits = q
    scale = q
    super_scale = q
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        bits = tl.load(h_ptr + tl.max_contiguous(rows * (COLS // 32) + place, [1, 1, 1]) + AHEAD)
    if FMT == Q6_K:
        bits_ptr = h_ptr + tl.max_contiguous(rows * (COLS // 16) + place * 2, [1, 1, 1]) + AHEAD * 2
        bits = tl.load(bits_ptr)
        more_bits = tl.load(bits_ptr + 1)
    # The coalescer must not see that lanes' scales are neighbours: it would vectorise their loads, and they would have
    # to be exchanged through shared memory to meet their quants.
    if not is_float(FMT):
        block = tl.max_contiguous(rows * (COLS // 32) + (place // 2 if FMT == Q8_0 else place), [1, 1, 1])
        scale = tl.load(s_ptr + block + (AHEAD // 2 if FMT == Q8_0 else AHEAD))
    if FMT == Q4_K or FMT == Q5_K or FMT == Q6_K or FMT == IQ4_XS:
        super_scale = tl.load(d_ptr + tl.max_contiguous(rows * (COLS // 256) + place // 8, [1, 1, 1]) + AHEAD // 8)
    if FMT == NVFP4:
        super_scale = tl.load(d_ptr + tl.max_contiguous(rows + place * 0, [1, 1, 1]))
    return q, bits, more_bits, scale, super_scale


@triton.constexpr_function
def high_factor(fmt):
    """What columns 16..31 are multiplied by as `unpack_words` leaves them IN_PLACE: nibbles need no shift then."""
    return 16 if fmt in (2, 3, 12) else 1


@triton.jit
def unpack_words(FMT: tl.constexpr, tile, NATIVE: tl.constexpr, IN_PLACE: tl.constexpr = False):
    """(words of columns 0..15, words of columns 16..31) of a tile, [T, W, RT, 4] int32, four integers to a word;
    for Q8_0 twice the same; plain numbers as they are.

    IN_PLACE: the latter times `high_factor`, unsigned bytes where that is not 1
    """
    q = tile[0]
    word = tl.arange(0, 4)[None, None, None, :]
    if FMT == Q8_0 or is_float(FMT):
        low = q
        high = q
    elif FMT == IQ4_NL or FMT == IQ4_XS:
        low, high = _table(q, -1079142271, -152379953, 0x26190D01, 0x71594535, NATIVE)
    elif FMT == MXFP4 or FMT == NVFP4:
        low, high = _table(q, 0x03020100, 0x0C080604, -33620224, -185009412, NATIVE)
    elif IN_PLACE and high_factor(FMT) == 16:
        low = q & 0x0F0F0F0F
        high = q & -0x0F0F0F10
    else:
        low = q & 0x0F0F0F0F
        high = (q >> 4) & 0x0F0F0F0F
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        bits = tile[1][:, :, :, None]
        low |= (bits << (4 - word)) & 0x10101010
        high |= (bits >> word) & 0x10101010
    if FMT == Q6_K:
        left = tl.maximum(4 - 2 * word, 0)  # one of the two is 0, and known to be
        right = tl.maximum(2 * word - 4, 0)
        low |= ((tile[1][:, :, :, None] << left) >> right) & 0x30303030
        high |= ((tile[2][:, :, :, None] << left) >> right) & 0x30303030
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
