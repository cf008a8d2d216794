"""Device functions: words of quants become f16 numbers in registers, WEIGHT_SCALE times their size.

Written in Gluon; any layout will do. The f16 number 1024 + v is an exponent over v's bits, and so is 1024 + 16 v: a
byte or a nibble needs one instruction to become a half and one, just as exact, to lose what was added. Where more bits
come from elsewhere, whole bytes are put together first. Knows formats; no grid, no activations.
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
_BYTES_ASM = gl.constexpr("""{ .reg .b32 a, b;
prmt.b32 a, $4, 0x64646464, 0x4140; prmt.b32 b, $4, 0x64646464, 0x4342;
sub.f16x2 a, a, $7; sub.f16x2 b, b, $7;
fma.rn.f16x2 a, a, $5, $6; fma.rn.f16x2 b, b, $5, $6;
mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; }""")
# $2 byte pair, $3 f16 pair d | dmin -> $0 scale twice, $1 minus the minimum twice
_K_SCALES_ASM = gl.constexpr("""{ .reg .b32 a, k, m, e; .reg .b16 x, y;
mov.b32 k, 0x64006400; mov.b32 m, 0xD4005400; mul.rn.f16x2 e, $3, m;
prmt.b32 a, $2, k, 0x5150; sub.f16x2 a, a, k; mul.rn.f16x2 a, a, e;
mov.b32 {x, y}, a; mov.b32 $0, {x, x}; mov.b32 $1, {y, y}; }""")
# $2 pair of signed bytes, $3 f16 d in the low half -> $0, $1 either scale twice
_Q6_SCALES_ASM = gl.constexpr("""{ .reg .b32 a, k, m, e; .reg .b16 x, y;
mov.b32 k, 0x64006400; mov.b32 m, 0x54005400; prmt.b32 e, $3, 0, 0x1010; mul.rn.f16x2 e, e, m;
xor.b32 a, $2, 0x8080; prmt.b32 a, a, k, 0x5150; mov.b32 k, 0x64806480; sub.f16x2 a, a, k; mul.rn.f16x2 a, a, e;
mov.b32 {x, y}, a; mov.b32 $0, {x, x}; mov.b32 $1, {y, y}; }""")
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
    return {6: 0x64106410, 14: 0x64206420}.get(fmt, 0x64006400)


@gluon.constexpr_function
def _nibbles_asm(fmt):
    """Eight nibbles of $8 -> $0..$3 the low ones' halves, $4..$7 the high ones'; $9, $10: scale, what is added."""
    offset = 8 if fmt == 2 else 0
    scaled = "mul.rn.f16x2 {0}, {0}, $9;" if fmt == 2 else "fma.rn.f16x2 {0}, {0}, $9, $10;"
    return f"""{{ .reg .b32 p, r, a, b, c, d, k, n, s, o;
mov.b32 k, 0x64006400; mov.b32 n, {0x64006400 + 0x10001 * offset};
mov.b32 s, 0x2C002C00; mov.b32 o, {0xD400D400 + 0x100010 * offset};
prmt.b32 p, $8, 0, 0x4140; prmt.b32 r, $8, 0, 0x4342;
lop3.b32 a, p, 0x000F000F, k, 0xEA; lop3.b32 b, r, 0x000F000F, k, 0xEA;
lop3.b32 c, p, 0x00F000F0, k, 0xEA; lop3.b32 d, r, 0x00F000F0, k, 0xEA;
sub.f16x2 a, a, n; sub.f16x2 b, b, n; fma.rn.f16x2 c, c, s, o; fma.rn.f16x2 d, d, s, o;
{scaled.format("a")} {scaled.format("b")} {scaled.format("c")} {scaled.format("d")}
mov.b32 {{$0, $1}}, a; mov.b32 {{$2, $3}}, b; mov.b32 {{$4, $5}}, c; mov.b32 {{$6, $7}}, d; }}"""


@gluon.jit
def _twice(x):
    """f32 -> int32 of two equal halves."""
    bits = x.to(gl.float16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return bits | (bits << 16)


@gluon.jit
def _low_half(word):
    return (word & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)


@gluon.jit
def _e4m3(byte):
    """Half of an unsigned E4M3 number, as f32 (quant_unpack)."""
    value = ((byte & 0x7F) << 7).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return gl.where(byte == 0x7F, 0.0, value * 128.0)


@gluon.jit
def _block(x, word):
    """[rows, 4] as [rows, 4, 4], for every word of a block."""
    x, word = gl.broadcast(gl.expand_dims(x, 2), word)
    return x


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
def _of_bytes(word, scale, added, OFFSET: gl.constexpr):
    """Words of four unsigned bytes [rows, 4, 4] -> four f16 tensors; scale, added: [rows, 4], two equal halves."""
    offset = gl.full(word.shape, OFFSET, gl.int32, word.type.layout)
    return gl.inline_asm_elementwise(
        _BYTES_ASM, "=h,=h,=h,=h,r,r,r,r", [word, _block(scale, word), _block(added, word), offset],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16), is_pure=True, pack=1,
    )


@gluon.jit
def _of_nibbles(FMT: gl.constexpr, q, scale, added):
    """Words of eight nibbles -> what `unpack` returns."""
    ASM: gl.constexpr = _nibbles_asm(FMT)
    v = gl.inline_asm_elementwise(
        ASM, "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r", [q, _block(scale, q), _block(added, q)],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16),
        is_pure=True, pack=1,
    )
    return (v[0], v[1], v[2], v[3]), (v[4], v[5], v[6], v[7])


@gluon.jit
def _scales(FMT: gl.constexpr, scale, supers):
    """(scale of columns 0 to 15 of each block, scale of 16 to 31, what is added), [rows, 4] of two equal halves."""
    if FMT == Q4_K or FMT == Q5_K:
        low, added = gl.inline_asm_elementwise(
            _K_SCALES_ASM, "=&r,=&r,r,r", [scale.to(gl.int32), supers], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
        )
        high = low
    elif FMT == Q6_K:
        low, high = gl.inline_asm_elementwise(
            _Q6_SCALES_ASM, "=&r,=&r,r,r", [scale.to(gl.int32), supers.to(gl.int16, bitcast=True).to(gl.int32)],
            dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
        )
        added = gl.zeros_like(low)
    elif FMT == NVFP4:
        pair = scale.to(gl.int32)
        low = _twice(supers * _e4m3(pair & 0xFF) * SCALE)
        high = _twice(supers * _e4m3((pair >> 8) & 0xFF) * SCALE)
        added = gl.zeros_like(low)
    elif FMT == Q4_1 or FMT == Q5_1:
        low = _twice(_low_half(scale) * SCALE)
        high = low
        added = _twice(_low_half(scale >> 16) * SCALE)
    else:
        if FMT == IQ4_XS:
            size = supers.to(gl.float32) * scale.to(gl.float32)
        elif FMT == MXFP4:
            size = (gl.maximum(scale.to(gl.int32) - 1, 0) << 23).to(gl.float32, bitcast=True)
        else:
            size = scale.to(gl.float32)
        low = _twice(size * SCALE)
        high = low
        added = gl.zeros_like(low)
    return low, high, added


@gluon.jit
def unpack(FMT: gl.constexpr, tile):
    """(four halves per word of columns 0 to 15 of each block, the same of columns 16 to 31), [rows, 4, 4] f16 each."""
    q, more, scale, supers = tile
    low, high, added = _scales(FMT, scale, supers)
    if FMT == Q4_0 or FMT == Q4_1 or FMT == Q4_K:
        found = _of_nibbles(FMT, q[0], low, added)
    else:
        first, second = _words(FMT, q, more)
        OFFSET: gl.constexpr = _offset(FMT)
        found = (_of_bytes(first, low, added, OFFSET), _of_bytes(second, high, added, OFFSET))
    return found
