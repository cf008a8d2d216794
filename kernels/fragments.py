"""Device functions: rows of quantised matrices as the matrix instruction's left operand, unpacked in registers.

Written in Gluon, whose layouts say where every number lies; it does not run under the interpreter.

Lane (g, t) of a quad loads block t of a group of 128 columns of its rows g and g + 8, unpacks it and has, word by word,
what the matrix instruction wants of it: the instruction's columns are not the matrix's columns in order, but x lies in
the same order (`pack_halves`), and a sum does not care.

column 32 t + 16 half + 4 word + 2 j + i of a group = position 32 word + 16 half + 8 j + 2 t + i

Weights are rounded to f16, WEIGHT_SCALE times their size. Knows formats; no grid, no activations.
Reference: kernels/reference/quant_weight.py
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

WEIGHT_SCALE = 64.0  # keeps small weights out of f16's subnormal numbers

Q4_0 = gl.constexpr(2)
Q4_1 = gl.constexpr(3)
Q5_0 = gl.constexpr(6)
Q5_1 = gl.constexpr(7)
Q8_0 = gl.constexpr(8)
Q4_K = gl.constexpr(12)
Q5_K = gl.constexpr(13)
Q6_K = gl.constexpr(14)
IQ4_XS = gl.constexpr(23)
MXFP4 = gl.constexpr(39)
NVFP4 = gl.constexpr(40)
SCALE = gl.constexpr(WEIGHT_SCALE)

# Four unsigned bytes v of $4 -> four halves (v - $7) * scale - minimum; $5, $6: scale and minimum as two equal halves
_HALVES_ASM = gl.constexpr("""{ .reg .b32 a, b;
prmt.b32 a, $4, 0x64646464, 0x4140; prmt.b32 b, $4, 0x64646464, 0x4342;
sub.f16x2 a, a, $7; sub.f16x2 b, b, $7;
fma.rn.f16x2 a, a, $5, $6; fma.rn.f16x2 b, b, $5, $6;
mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; }""")


# quant_unpack's lookup of the eight nibbles of $2 in the 16 bytes $3 $4 $5 $6
_LOOKUP_ASM = gl.constexpr("""{ .reg .b32 a, s, l, h, t, u;
and.b32 a, $2, 0x77777777; and.b32 s, $2, 0x88888888; shr.u32 s, s, 1; or.b32 s, s, 0x32103210;
prmt.b32 l, $3, $4, a; prmt.b32 h, $5, $6, a; prmt.b32 t, l, h, s;
shr.u32 a, a, 16; shr.u32 s, s, 16;
prmt.b32 l, $3, $4, a; prmt.b32 h, $5, $6, a; prmt.b32 u, l, h, s;
prmt.b32 $0, t, u, 0x6420; prmt.b32 $1, t, u, 0x7531; }""")


@gluon.constexpr_function
def _has_table(fmt):
    return fmt in (20, 23, 39, 40)


@gluon.constexpr_function
def _table(fmt):
    """16 signed bytes: IQ4's code book, or twice the values of an E2M1 number."""
    if fmt in (20, 23):
        return (-1079142271, -152379953, 0x26190D01, 0x71594535)
    return (0x03020100, 0x0C080604, -33620224, -185009412)


@gluon.constexpr_function
def _offset(fmt):
    """What lies above a number in its byte, 1024 added, as two halves."""
    if fmt == 8 or _has_table(fmt):
        return 0x64806480
    return {2: 0x64086408, 6: 0x64106410, 14: 0x64206420}.get(fmt, 0x64006400)


@gluon.constexpr_function
def tile_layout(rows=64):
    """[rows, 4 lanes of a quad, 4 words of a lane]: rows as the matrix instruction's A fragment has them, 16 a warp."""
    warps = [[16, 0, 0], [32, 0, 0], [64, 0, 0]]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], [8, 0, 0]],
        lane_bases=[[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        warp_bases=warps[:2] if rows == 64 else warps,
        block_bases=[],
        shape=[rows, 4, 4],
    )


@gluon.jit
def _twice(x):
    """f32 -> int32 of two equal halves."""
    bits = x.to(gl.float16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return bits | (bits << 16)


@gluon.jit
def _halves(word, scale, minimum, OFFSET: gl.constexpr):
    """Words of four unsigned bytes [rows, 4, 4] -> four f16 tensors; scale, minimum: [rows, 4, 1] int32, two halves."""
    offset = gl.full(word.shape, OFFSET, gl.int32, word.type.layout)
    scale, word = gl.broadcast(scale, word)
    minimum, word = gl.broadcast(minimum, word)
    return gl.inline_asm_elementwise(
        _HALVES_ASM, "=h,=h,=h,=h,r,r,r,r", [word, scale, minimum, offset],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16), is_pure=True, pack=1,
    )


@gluon.jit
def from_row(FMT: gl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, row, COLS: gl.constexpr):
    """The planes from one of their rows on; row: int64."""
    Q8: gl.constexpr = FMT == Q8_0
    q_ptr += row * (COLS // 4 if Q8 else COLS // 8)
    h_ptr += row * (COLS // 16 if FMT == Q6_K else COLS // 32)
    s_ptr += row * (COLS // 32)
    d_ptr += row * (1 if FMT == NVFP4 else COLS // 256)
    return q_ptr, h_ptr, s_ptr, d_ptr


@gluon.jit
def load_group(FMT: gl.constexpr, planes, row, group, COLS: gl.constexpr):
    """What lies in memory of group number `group` of some rows: (quants [rows, 4, words], more bits, scales, supers).

    row: [rows] int32 in a slice of `tile_layout`, counted from where `planes` begin
    """
    L: gl.constexpr = tile_layout(row.shape[0])
    BLOCKS: gl.constexpr = gl.SliceLayout(2, L)  # [rows, 4]: a lane's blocks
    q_ptr, h_ptr, s_ptr, d_ptr = planes
    row = gl.expand_dims(row, 1)
    t = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, BLOCKS)), 0)
    word = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, L))), 0), 1)
    block = row * (COLS // 32) + t
    scale = gl.load(s_ptr + group * 4 + block)
    if FMT == Q8_0:
        place = q_ptr + group * 32 + (gl.expand_dims(block * 8, 2) + word)
        q = (gl.load(place), gl.load(place + 4))
        high = q
        supers = scale
    else:
        q = (gl.load(q_ptr + group * 16 + (gl.expand_dims(block * 4, 2) + word)),)
        high = q
        if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
            high = (gl.load(h_ptr + group * 4 + block),)
        if FMT == Q6_K:
            place = h_ptr + group * 8 + block * 2
            high = (gl.load(place), gl.load(place + 1))
        supers = scale
        if FMT == Q4_K or FMT == Q5_K or FMT == Q6_K or FMT == IQ4_XS:
            supers = gl.load(d_ptr + group // 2 + (row * (COLS // 256) + t * 0))
        if FMT == NVFP4:
            supers = gl.load(d_ptr + (row + t * 0))
    return q, high, scale, supers


@gluon.jit
def _low_half(word):
    return (word & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)


@gluon.jit
def _signed_byte(word, INDEX: gl.constexpr):
    return ((word << (24 - 8 * INDEX)) >> 24).to(gl.float32)


@gluon.jit
def _e4m3(byte):
    """Half of an unsigned E4M3 number, as f32 (quant_unpack)."""
    value = ((byte & 0x7F) << 7).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return gl.where(byte == 0x7F, 0.0, value * 128.0)


@gluon.jit
def _words(FMT: gl.constexpr, q, high):
    """Words of four bytes of columns 0 to 15 of each block, and of columns 16 to 31."""
    L: gl.constexpr = q[0].type.layout
    word = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, L))), 0), 1)
    if FMT == Q8_0:
        first = q[0]
        second = q[1]
    elif _has_table(FMT):
        TABLE: gl.constexpr = _table(FMT)
        t0 = gl.full(q[0].shape, TABLE[0], gl.int32, L)
        t1 = gl.full(q[0].shape, TABLE[1], gl.int32, L)
        t2 = gl.full(q[0].shape, TABLE[2], gl.int32, L)
        t3 = gl.full(q[0].shape, TABLE[3], gl.int32, L)
        first, second = gl.inline_asm_elementwise(
            _LOOKUP_ASM, "=&r,=&r,r,r,r,r,r", [q[0], t0, t1, t2, t3], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
        )
    else:
        first = q[0] & 0x0F0F0F0F
        second = (q[0] >> 4) & 0x0F0F0F0F
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        bits = gl.expand_dims(high[0], 2)
        first |= ((bits >> word) & 0x01010101) << 4
        second |= ((bits >> (4 + word)) & 0x01010101) << 4
    if FMT == Q6_K:
        first |= ((gl.expand_dims(high[0], 2) >> (2 * word)) & 0x03030303) << 4
        second |= ((gl.expand_dims(high[1], 2) >> (2 * word)) & 0x03030303) << 4
    if FMT == Q8_0 or _has_table(FMT):  # signed bytes
        first = first ^ -2139062144
        second = second ^ -2139062144
    return first, second


@gluon.jit
def _scales(FMT: gl.constexpr, scale, supers):
    """(scale of columns 0 to 15 of each block, scale of 16 to 31, what is added), [rows, 4] f32."""
    added = gl.zeros_like(scale.to(gl.float32))
    if FMT == Q4_1 or FMT == Q5_1:
        low = _low_half(scale)
        added = _low_half(scale >> 16)
        high = low
    elif FMT == Q4_K or FMT == Q5_K:
        pair = scale.to(gl.int32)
        low = _low_half(supers) * (pair & 0xFF).to(gl.float32)
        added = -_low_half(supers >> 16) * ((pair >> 8) & 0xFF).to(gl.float32)
        high = low
    elif FMT == Q6_K:
        pair = scale.to(gl.int32)
        low = supers.to(gl.float32) * _signed_byte(pair, 0)
        high = supers.to(gl.float32) * _signed_byte(pair, 1)
    elif FMT == NVFP4:
        pair = scale.to(gl.int32)
        low = supers * _e4m3(pair & 0xFF)
        high = supers * _e4m3((pair >> 8) & 0xFF)
    elif FMT == IQ4_XS:
        low = supers.to(gl.float32) * scale.to(gl.float32)
        high = low
    elif FMT == MXFP4:
        low = (gl.maximum(scale.to(gl.int32) - 1, 0) << 23).to(gl.float32, bitcast=True)
        high = low
    else:
        low = scale.to(gl.float32)
        high = low
    return low, high, added


@gluon.jit
def unpack(FMT: gl.constexpr, tile):
    """(four halves per word of columns 0 to 15 of each block, the same of columns 16 to 31), [rows, 4, 4] f16 each."""
    q, more, scale, supers = tile
    first, second = _words(FMT, q, more)
    low, high, added = _scales(FMT, scale, supers)
    added = gl.expand_dims(_twice(added * SCALE), 2)
    OFFSET: gl.constexpr = _offset(FMT)
    return (
        _halves(first, gl.expand_dims(_twice(low * SCALE), 2), added, OFFSET),
        _halves(second, gl.expand_dims(_twice(high * SCALE), 2), added, OFFSET),
    )


@gluon.jit
def fragment(low, high, LAYOUT: gl.constexpr):
    """The unpacked numbers of a step as the left operand, [rows, 128 positions] f16; moves nothing."""
    a = gl.join(gl.join(low[0], low[1]), gl.join(low[2], low[3]))      # [rows, t, word, i, j]
    b = gl.join(gl.join(high[0], high[1]), gl.join(high[2], high[3]))
    both = gl.permute(gl.join(a, b), (0, 2, 5, 4, 1, 3))               # [rows, word, half, j, t, i]
    return gl.convert_layout(gl.reshape(both, (low[0].shape[0], 128)), LAYOUT)
