"""Device functions: rows of quantised matrices as the matrix instruction's left operand, straight from memory.

Written in Gluon, whose layouts say where every number lies; it does not run under the interpreter.

Lane (g, t) of a quad loads block t of a group of 128 columns of its rows g and g + 8, unpacks it and has, word by word,
what the matrix instruction wants of it: the instruction's columns are not the matrix's columns in order, but x lies in
the same order (`pack_halves`), and a sum does not care.

column 32 t + 16 half + 4 word + 2 i + j of a group = position 32 word + 16 half + 8 j + 2 t + i

Between loading and `fragment` stands `unpack_halves`. Knows formats' planes; no grid, no activations.
Reference: kernels/reference/quant_weight.py
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.unpack_halves import IQ4_XS, NVFP4, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, QUANT


@gluon.constexpr_function
def tile_layout():
    """[64 rows, 4 lanes of a quad, 4 words of a lane]: rows as the matrix instruction's A fragment has them."""
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [0, 0, 2], [8, 0, 0]],
        lane_bases=[[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        warp_bases=[[16, 0, 0], [32, 0, 0]],
        block_bases=[],
        shape=[64, 4, 4],
    )


@gluon.jit
def from_row(FMT: gl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, e_ptr, row, COLS: gl.constexpr):
    """The planes from one of their rows on; row: int64."""
    Q8: gl.constexpr = FMT == Q8_0
    q_ptr += row * (COLS // 4 if Q8 else COLS // 8)
    h_ptr += row * (COLS // 16 if FMT == Q6_K else COLS // 32)
    s_ptr += row * (COLS // 32)
    d_ptr += row * (1 if FMT == NVFP4 else COLS // 256)
    return q_ptr, h_ptr, s_ptr, d_ptr, e_ptr + row


@gluon.jit
def forward(FMT: gl.constexpr, planes, pairs):
    """The planes from so many pairs of groups further on in every row."""
    q_ptr, h_ptr, s_ptr, d_ptr, e_ptr = planes
    q_ptr += pairs * (64 if FMT == Q8_0 else 32)
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K or FMT == Q6_K:
        h_ptr += pairs * (16 if FMT == Q6_K else 8)
    if FMT == Q4_K or FMT == Q5_K or FMT == Q6_K or FMT == IQ4_XS:
        d_ptr += pairs
    return q_ptr, h_ptr, s_ptr + pairs * 8, d_ptr, e_ptr


@gluon.jit
def _between(ptr, other_ptr):
    """Elements from one to the other, both multiples of 16 bytes; said so that loads stay as wide as they are."""
    BYTES: gl.constexpr = ptr.dtype.element_ty.primitive_bitwidth // 8
    return ((other_ptr.to(gl.int64) - ptr.to(gl.int64)) >> 4) * (16 // BYTES)


@gluon.jit
def planes_apart(planes, other):
    """Elements from the planes of one matrix to those of another one of the same format."""
    return (_between(planes[0], other[0]), _between(planes[1], other[1]), _between(planes[2], other[2]),
            _between(planes[3], other[3]), _between(planes[4], other[4]))


@gluon.jit
def _places(row, PER_ROW: gl.constexpr, t, apart):
    """row * PER_ROW + t, int64 [rows, 4].

    What tells a lane's two rows apart is added last, so that it ends up within the load instruction.
    """
    row = gl.expand_dims(row, 1).to(gl.int64)
    if apart is None:
        second = (row & 8) * PER_ROW
    else:
        second = (row >> 3 & 1) * apart
    return ((row & -9) * PER_ROW + t) + second


@gluon.jit
def load_quants(FMT: gl.constexpr, planes, row, group, COLS: gl.constexpr, apart):
    """Of group number `group` of some rows: (quants [rows, 4, words], more bits, scales).

    row:   [64] int32 in a slice of `tile_layout`, counted from where `planes` begin
    apart: where rows with bit 3 are of another matrix, counted without it: `planes_apart`; else (None,) * 5
    """
    L: gl.constexpr = tile_layout()
    q_ptr, h_ptr, s_ptr, _, _ = planes
    t = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, L))), 0).to(gl.int64)
    word = gl.expand_dims(gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, L))), 0), 1).to(gl.int64)
    scale = gl.load(s_ptr + group * 4 + _places(row, COLS // 32, t, apart[2]))
    if FMT == Q8_0:
        place = q_ptr + group * 32 + (gl.expand_dims(_places(row, COLS // 4, t * 8, apart[0]), 2) + word)
        q = (gl.load(place), gl.load(place + 4))
    else:
        q = (gl.load(q_ptr + group * 16 + (gl.expand_dims(_places(row, COLS // 8, t * 4, apart[0]), 2) + word)),)
    high = q
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        high = (gl.load(h_ptr + group * 4 + _places(row, COLS // 32, t, apart[1])),)
    if FMT == Q6_K:
        pairs_apart = None if apart[1] is None else apart[1] // 2
        both = gl.load(h_ptr.to(gl.pointer_type(gl.int64), bitcast=True) + group * 4
                       + _places(row, COLS // 32, t, pairs_apart))
        high = (both.to(gl.int32), (both >> 32).to(gl.int32))
    return q, high, scale


@gluon.jit
def load_supers(FMT: gl.constexpr, planes, row, pair, COLS: gl.constexpr, apart):
    """What groups 2 * pair and 2 * pair + 1 have in common, [rows, 4]; nothing in most formats."""
    d_ptr = planes[3]
    t = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, tile_layout()))), 0)
    if FMT == Q4_K or FMT == Q5_K or FMT == Q6_K or FMT == IQ4_XS:
        supers = gl.load(d_ptr + pair + _places(row, COLS // 256, (t * 0).to(gl.int64), apart[3]))
    elif FMT == NVFP4:
        supers = gl.load(d_ptr + _places(row, 1, (t * 0).to(gl.int64), apart[3]))
    else:
        supers = gl.expand_dims(row, 1) + t
    return supers


@gluon.jit
def load_powers(planes, row, apart):
    """`QuantWeight.powers` of rows, [rows, 4] as `unpack` takes them."""
    t = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, tile_layout()))), 0)
    return gl.load(planes[4] + _places(row, 1, (t * 0).to(gl.int64), apart[4]))


@gluon.jit
def product_factors(planes, row, apart):
    """What takes products of rows to their size; row: [64] int32 in any layout."""
    second = (row & 8) if apart[4] is None else (row >> 3 & 1) * apart[4]
    return (1.0 / QUANT) / gl.load(planes[4] + ((row & -9).to(gl.int64) + second))


@gluon.jit
def load_group(FMT: gl.constexpr, planes, row, group, COLS: gl.constexpr):
    """Both, as `unpack` takes them."""
    apart = (None, None, None, None, None)
    q, high, scale = load_quants(FMT, planes, row, group, COLS, apart)
    return q, high, scale, load_supers(FMT, planes, row, group // 2, COLS, apart)


@gluon.jit
def fragment(low, high, LAYOUT: gl.constexpr):
    """The unpacked numbers of a step as the left operand, [rows, 128 positions] f16; moves nothing."""
    a = gl.join(gl.join(low[0], low[1]), gl.join(low[2], low[3]))      # [rows, t, word, i, j]
    b = gl.join(gl.join(high[0], high[1]), gl.join(high[2], high[3]))
    both = gl.permute(gl.join(a, b), (0, 2, 5, 4, 1, 3))               # [rows, word, half, j, t, i]
    return gl.convert_layout(gl.reshape(both, (low[0].shape[0], 128)), LAYOUT)
