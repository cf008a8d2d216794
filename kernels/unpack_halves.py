"""Device functions: words of quants become f16 numbers in registers.

Written in Gluon; any layout will do. A quant's bits in a half are the subnormal number 2^-24 of it, exactly, so that
masking or moving bytes converts and one multiplication and addition in f16 ends it: a weight comes out as 2^-24 of
itself times a power of two that takes its row's largest scale to the upper end of f16 (`QuantWeight.powers`). Where
more bits come from elsewhere, whole bytes are put together first. Knows formats; no grid, no activations.
Reference: kernels/reference/quant_weight.py
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
QUANT = gl.constexpr(2.0**-24)  # what a quant is as a half

# Four unsigned bytes of $4 -> four halves; $5, $6: scale and what is added as two equal halves
_BYTES_ASM = gl.constexpr("""{ .reg .b32 a, b;
prmt.b32 a, $4, 0, 0x4240; prmt.b32 b, $4, 0, 0x4341;
fma.rn.f16x2 a, a, $5, $6; fma.rn.f16x2 b, b, $5, $6;
mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; }""")
# Eight nibbles of $8 -> $0..$3 the low ones' halves, $4..$7 the high ones'; $9, $10: scale and a 16th of it, $11: added
_NIBBLES_ASM = gl.constexpr("""{ .reg .b32 r, a, b, c, d;
shr.u32 r, $8, 8; and.b32 a, $8, 0x000F000F; and.b32 b, r, 0x000F000F;
and.b32 c, $8, 0x00F000F0; and.b32 d, r, 0x00F000F0;
fma.rn.f16x2 a, a, $9, $11; fma.rn.f16x2 b, b, $9, $11; fma.rn.f16x2 c, c, $10, $11; fma.rn.f16x2 d, d, $10, $11;
mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; mov.b32 {$4, $5}, c; mov.b32 {$6, $7}, d; }""")
# $3 byte pair, $4 f16 pair d | dmin, $5 the same of 2^(exponent - 12) | -2^(exponent - 14) -> $0 scale twice, $1 a 16th
# of it twice, $2 minus the minimum twice. Powers of two come in two steps: one does not fit f16.
_K_SCALES_ASM = gl.constexpr("""{ .reg .b32 a, b, k, m, e; .reg .b16 x, y, z, w;
mov.b32 k, 0x64006400; mul.rn.f16x2 e, $4, $5;
prmt.b32 a, $3, k, 0x5150; sub.f16x2 a, a, k; mul.rn.f16x2 a, a, e;
mov.b32 m, 0x14005C00; mul.rn.f16x2 b, a, m; mov.b32 m, 0x14006C00; mul.rn.f16x2 a, a, m;
mov.b32 {x, y}, a; mov.b32 {z, w}, b; mov.b32 $0, {x, x}; mov.b32 $1, {z, z}; mov.b32 $2, {y, y}; }""")
# $4 pair of signed bytes, $5 f16 d and $6 2^(exponent - 12) in the low half -> $0, $1 either scale twice, $2, $3 minus
# 32 of 2^-24 of it twice
_Q6_SCALES_ASM = gl.constexpr("""{ .reg .b32 a, b, k, m, e; .reg .b16 x, y;
mov.b32 k, 0x64006400; mul.rn.f16x2 e, $5, $6; prmt.b32 e, e, 0, 0x1010;
xor.b32 a, $4, 0x8080; prmt.b32 a, a, k, 0x5150; mov.b32 k, 0x64806480; sub.f16x2 a, a, k; mul.rn.f16x2 a, a, e;
mov.b32 m, 0xA000A000; mul.rn.f16x2 b, a, m; mov.b32 m, 0x6C006C00; mul.rn.f16x2 a, a, m;
mov.b32 {x, y}, a; mov.b32 $0, {x, x}; mov.b32 $1, {y, y};
mov.b32 {x, y}, b; mov.b32 $2, {x, x}; mov.b32 $3, {y, y}; }""")
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
    """What is taken away from a quant, stored as an unsigned one."""
    return 128 if fmt == 8 or _has_table(fmt) else {2: 8, 6: 16}.get(fmt, 0)


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
def _of_bytes(word, scale, added):
    """Words of four unsigned bytes [rows, 4, 4] -> four f16 tensors; scale, added: [rows, 4], two equal halves."""
    return gl.inline_asm_elementwise(
        _BYTES_ASM, "=h,=h,=h,=h,r,r,r", [word, _block(scale, word), _block(added, word)],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16), is_pure=True, pack=1,
    )


@gluon.jit
def _of_nibbles(q, scale, sixteenth, added):
    """Words of eight nibbles -> what `unpack` returns."""
    v = gl.inline_asm_elementwise(
        _NIBBLES_ASM, "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r,r",
        [q, _block(scale, q), _block(sixteenth, q), _block(added, q)],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16),
        is_pure=True, pack=1,
    )
    return (v[0], v[1], v[2], v[3]), (v[4], v[5], v[6], v[7])


@gluon.jit
def _halves_of_power(power, LESS: gl.constexpr):
    """f32 2^e -> bits of the f16 2^(e - LESS)."""
    return ((power.to(gl.int32, bitcast=True) >> 23) - (112 + LESS)) << 10


@gluon.jit
def _scales(FMT: gl.constexpr, scale, supers, power):
    """(scale of columns 0 to 15 of each block, scale of 16 to 31, what is added to either), [rows, 4] of two equal
    halves; of nibbles the second scale is a 16th of the first, for high ones."""
    if FMT == Q4_K or FMT == Q5_K:
        by = _halves_of_power(power, 12) | _halves_of_power(power, 14) << 16 | -(2**31)
        low, sixteenth, added = gl.inline_asm_elementwise(
            _K_SCALES_ASM, "=&r,=&r,=&r,r,r,r", [scale.to(gl.int32), supers, by],
            dtype=(gl.int32, gl.int32, gl.int32), is_pure=True, pack=1,
        )
        high = sixteenth if FMT == Q4_K else low
        high_added = added
    elif FMT == Q6_K:
        by = _halves_of_power(power, 12)
        low, high, added, high_added = gl.inline_asm_elementwise(
            _Q6_SCALES_ASM, "=&r,=&r,=&r,=&r,r,r,r",
            [scale.to(gl.int32), supers.to(gl.int16, bitcast=True).to(gl.int32), by],
            dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1,
        )
    else:
        if FMT == NVFP4:
            pair = scale.to(gl.int32)
            size = supers * _e4m3(pair & 0xFF) * power
            high_size = supers * _e4m3((pair >> 8) & 0xFF) * power
        else:
            if FMT == Q4_1 or FMT == Q5_1:
                size = _low_half(scale) * power
            elif FMT == IQ4_XS:
                size = supers.to(gl.float32) * scale.to(gl.float32) * power
            elif FMT == MXFP4:
                size = (gl.maximum(scale.to(gl.int32) - 1, 0) << 23).to(gl.float32, bitcast=True) * power
            else:
                size = scale.to(gl.float32) * power
            high_size = size * 0.0625 if FMT == Q4_0 or FMT == Q4_1 else size
        low = _twice(size)
        high = _twice(high_size)
        if FMT == Q4_1 or FMT == Q5_1:
            added = _twice(_low_half(scale >> 16) * (power * QUANT))
            high_added = added
        else:
            TAKEN: gl.constexpr = -_offset(FMT) * 2.0**-24
            added = _twice(size * TAKEN)
            high_added = _twice(high_size * TAKEN) if FMT == NVFP4 else added
    return low, high, added, high_added


@gluon.jit
def unpack(FMT: gl.constexpr, tile, power):
    """(four halves per word of columns 0 to 15 of each block, the same of columns 16 to 31), [rows, 4, 4] f16 each, of
    bytes 0, 2, 1 and 3 of a word; power: [rows, 4] f32, `QuantWeight.powers`."""
    q, more, scale, supers = tile
    low, high, added, high_added = _scales(FMT, scale, supers, power)
    if FMT == Q4_0 or FMT == Q4_1 or FMT == Q4_K:
        found = _of_nibbles(q[0], low, high, added)
    else:
        first, second = _words(FMT, q, more)
        found = (_of_bytes(first, low, added), _of_bytes(second, high, high_added))
    return found
