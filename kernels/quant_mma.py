"""Device functions: 16 quantised rows times up to 8 rows of 16-bit integers on the integer tensor cores (m16n8k16).

Owns the arithmetic of few tokens; knows no grid. Values live one to a thread in tensors of 32 * W elements, lane
4g + t of warp w at 32w + 4g + t, which is how the matrix instruction numbers its fragments: A holds rows g and g + 8, B
token g, the result tokens 2t and 2t + 1. A warp takes every W-th group of four 16-byte chunks; each lane of a quad
loads one whole chunk of its row (16 bytes), and the quad then transposes, so that step i of the group multiplies
chunk i.
Without tensor cores of this kind (interpreter, AMD) the same exchanges are spelled out in tensor operations.
Reference: kernels/reference/quant_weight.py (values), kernels/reference/quant_gemv.py (products).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.quant_dot import _byte, split4
from kernels.quant_unpack import (
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    _table,
    has_minimum,
    load_tile,
    unpack_scales,
)

_TRANSPOSE_ASM = tl.constexpr("""{ .reg .pred p, q; .reg .b32 l, s, u, a, b, c, d;
mov.u32 l, %laneid; and.b32 s, l, 1; setp.eq.u32 p, s, 0; and.b32 s, l, 2; setp.eq.u32 q, s, 0;
selp.b32 s, $5, $4, p; shfl.sync.bfly.b32 u, s, 1, 0x1f, 0xffffffff; selp.b32 a, $4, u, p; selp.b32 b, u, $5, p;
selp.b32 s, $7, $6, p; shfl.sync.bfly.b32 u, s, 1, 0x1f, 0xffffffff; selp.b32 c, $6, u, p; selp.b32 d, u, $7, p;
selp.b32 s, c, a, q; shfl.sync.bfly.b32 u, s, 2, 0x1f, 0xffffffff; selp.b32 $0, a, u, q; selp.b32 $2, u, c, q;
selp.b32 s, d, b, q; shfl.sync.bfly.b32 u, s, 2, 0x1f, 0xffffffff; selp.b32 $1, b, u, q; selp.b32 $3, u, d, q; }""")
_MMA_ASM = tl.constexpr("""{ .reg .b32 a, b, c, d;
mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {a,b,c,d}, {$4,$5}, {$6}, {$8,$8,$8,$8};
shl.b32 a, a, 8; shl.b32 b, b, 8; shl.b32 c, c, 8; shl.b32 d, d, 8;
mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$5}, {$7}, {a,b,c,d}; }""")


@triton.jit
def _quad_transpose(a, b, c, d, NATIVE: tl.constexpr):
    """Lane t's words (0..3) -> word t of lanes 0..3 of its quad."""
    if NATIVE:
        a, b, c, d = tl.inline_asm_elementwise(
            _TRANSPOSE_ASM, "=&r,=&r,=&r,=&r,r,r,r,r", [a, b, c, d],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )
    else:
        N: tl.constexpr = a.shape[0]
        words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (N // 4, 4, 4))
        words = tl.reshape(tl.permute(words, (0, 2, 1)), (N, 2, 2))
        first, second = tl.split(words)
        a, c = tl.split(first)
        b, d = tl.split(second)
    return a, b, c, d


@triton.jit
def _quad_take(x, INDEX: tl.constexpr, NATIVE: tl.constexpr):
    """The value of lane INDEX of each quad, in all its lanes; x: 32-bit."""
    if NATIVE:
        index = tl.full(x.shape, INDEX, tl.int32)
        return tl.inline_asm_elementwise(
            "shfl.sync.idx.b32 $0, $1, $2, 0x1c1f, 0xffffffff;", "=r,r,r", [x, index], dtype=x.dtype, is_pure=True,
            pack=1
        )
    N: tl.constexpr = x.shape[0]
    quads = tl.reshape(x, (N // 4, 4))
    taken = tl.sum(tl.where(tl.arange(0, 4)[None, :] == INDEX, quads, 0), axis=1)
    return tl.reshape(tl.broadcast_to(taken[:, None], (N // 4, 4)), (N,))


@triton.jit
def _products(a, b, W: tl.constexpr):
    """The spelled-out multiplication: a [32 W] rows g, b [32 W] tokens g -> tokens 2t and 2t + 1 of row g."""
    a = tl.reshape(a, (W, 8, 1, 4))
    b = tl.reshape(b, (W, 1, 8, 4))
    total = _byte(a, 0) * _byte(b, 0) + _byte(a, 1) * _byte(b, 1)
    total += _byte(a, 2) * _byte(b, 2) + _byte(a, 3) * _byte(b, 3)
    even, odd = tl.split(tl.reshape(tl.sum(total, axis=3), (W, 8, 4, 2)))
    return tl.reshape(even, (W * 32,)), tl.reshape(odd, (W * 32,))


@triton.jit
def _mma(a, a_below, high, low, W: tl.constexpr, NATIVE: tl.constexpr):
    """16 x 16 signed bytes times 16 x 8 integers 256 * high + low: (row g, token 2t), (g, 2t + 1), (g + 8, 2t),
    (g + 8, 2t + 1), f32 of exact integers."""
    if NATIVE:
        zero = tl.zeros_like(a)
        c0, c1, c2, c3 = tl.inline_asm_elementwise(
            _MMA_ASM, "=r,=r,=r,=r,r,r,r,r,r", [a, a_below, high, low, zero],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )
    else:
        c0, c1 = _products(a, high, W)
        c2, c3 = _products(a_below, high, W)
        d0, d1 = _products(a, low, W)
        d2, d3 = _products(a_below, low, W)
        c0 = 256 * c0 + d0
        c1 = 256 * c1 + d1
        c2 = 256 * c2 + d2
        c3 = 256 * c3 + d3
    return c0.to(tl.float32), c1.to(tl.float32), c2.to(tl.float32), c3.to(tl.float32)


@triton.jit
def _flat(x):
    return tl.reshape(x, (x.shape[0],))


@triton.jit
def load_group(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, COLS: tl.constexpr
):
    """A lane's chunk of its row and of the row eight below, as `load_tile` gives them ([N, 1, 1, 4] and [N, 1, 1])."""
    lane = tl.arange(0, rows.shape[0]) % 32
    chunk = group * 4 + lane % 4
    above = load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows[:, None, None], chunk, COLS)
    below = load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows[:, None, None] + 8, chunk, COLS)
    return above, below


@triton.jit
def _unpack(FMT: tl.constexpr, word, bits, more_bits, t, NATIVE: tl.constexpr):
    """Word t of a chunk with its block's high bits -> four integers of columns 4t.., four of 16 + 4t.. ."""
    if FMT == Q8_0:
        low = word
        high = word
    elif FMT == IQ4_NL or FMT == IQ4_XS:
        low, high = _table(word, -1079142271, -152379953, 0x26190D01, 0x71594535, NATIVE)
    elif FMT == MXFP4 or FMT == NVFP4:
        low, high = _table(word, 0x03020100, 0x0C080604, -33620224, -185009412, NATIVE)
    else:
        low = word & 0x0F0F0F0F
        high = (word >> 4) & 0x0F0F0F0F
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        low |= ((bits >> t) & 0x01010101) << 4
        high |= ((bits >> (4 + t)) & 0x01010101) << 4
    if FMT == Q6_K:
        low |= ((bits >> (2 * t)) & 0x03030303) << 4
        high |= ((more_bits >> (2 * t)) & 0x03030303) << 4
    return low, high


@triton.jit
def _load_words(x_words, COLS: tl.constexpr, NATIVE: tl.constexpr):
    """A block of each lane's token, addresses x_words [N] in the plane of high bytes: (high words, low words), four
    each, word t of the quad's four blocks."""
    word = tl.arange(0, 4)[None, :]
    high = _quad_transpose(*split4(tl.load(x_words[:, None] + word)), NATIVE)
    low = _quad_transpose(*split4(tl.load((x_words + COLS // 4)[:, None] + word)), NATIVE)
    return high, low


@triton.jit
def _load4(ptr, place):
    """Four neighbouring f32 at ptr + place [N]."""
    return split4(tl.load(ptr + place[:, None] + tl.arange(0, 4)[None, :]))


@triton.jit
def _block_scales(FMT: tl.constexpr, xs_ptr, place, PLANE: tl.constexpr):
    """(four scales of a token's even blocks, four of its odd ones) of a group; Q8_0 takes blocks one by one: twice
    all."""
    if FMT == Q8_0:
        two = tl.arange(0, 2)[None, :]
        s0, s2 = tl.split(tl.load(xs_ptr + place[:, None] + two))
        s1, s3 = tl.split(tl.load(xs_ptr + (place + PLANE)[:, None] + two))
        even = (s0, s1, s2, s3)
        odd = even
    else:
        even = _load4(xs_ptr, place)
        odd = _load4(xs_ptr, place + PLANE)
    return even, odd


@triton.jit
def _span_factor(ss_ptr, place, eps, GROUP: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of GROUP columns from their partial sums at ss_ptr + place [N]."""
    squares = tl.load(ss_ptr + place[:, None] + tl.arange(0, GROUP // 16)[None, :])
    return tl.rsqrt(tl.sum(squares, axis=1) / GROUP + eps)


@triton.jit
def add_group(
    FMT: tl.constexpr, sums, tile, group, is_real, x_ptr, xs_ptr, xm_ptr, COLS: tl.constexpr, M: tl.constexpr,
    W: tl.constexpr, GROUP: tl.constexpr, ss_ptr, eps, NATIVE: tl.constexpr,
):
    """sums (the four results of `_mma`) + one group's products, scaled.

    group, is_real: [N] int32, bool: the group of each warp, and whether it exists (else it adds nothing)
    """
    lane = tl.arange(0, W * 32) % 32
    t = lane % 4
    token = tl.minimum(lane // 4, M - 1)
    left = tl.minimum(2 * t, M - 1)
    right = tl.minimum(2 * t + 1, M - 1)
    above, below = tile
    q_above = _quad_transpose(*split4(tl.reshape(above[0], (W * 32, 4))), NATIVE)
    q_below = _quad_transpose(*split4(tl.reshape(below[0], (W * 32, 4))), NATIVE)
    s_above, sh_above, mn_above = unpack_scales(FMT, above)
    s_below, sh_below, mn_below = unpack_scales(FMT, below)
    s_above = tl.where(is_real, _flat(s_above), 0.0)
    s_below = tl.where(is_real, _flat(s_below), 0.0)
    HAS_MINIMUM: tl.constexpr = has_minimum(FMT)
    HAS_TWO_SCALES: tl.constexpr = FMT == Q6_K or FMT == NVFP4
    PLANE: tl.constexpr = COLS // 32
    if FMT == Q8_0:
        block = group * 4 + t
        place = (block % 2) * PLANE + block // 2
        x_even = _load_words(x_ptr + token * (COLS // 2) + place * 4, COLS, NATIVE)
        x_odd = x_even
        scale_place = group * 2
    else:
        x_words = x_ptr + token * (COLS // 2) + (group * 4 + t) * 4
        x_even = _load_words(x_words, COLS, NATIVE)
        x_odd = _load_words(x_words + COLS // 8, COLS, NATIVE)
        scale_place = group * 4
    left_place = left * (COLS // 16) + scale_place
    right_place = right * (COLS // 16) + scale_place
    left_even, left_odd = _block_scales(FMT, xs_ptr, left_place, PLANE)
    right_even, right_odd = _block_scales(FMT, xs_ptr, right_place, PLANE)
    if HAS_MINIMUM or FMT == Q6_K:
        left_sum_even = _load4(xm_ptr, left_place)
        left_sum_odd = _load4(xm_ptr, left_place + PLANE)
        right_sum_even = _load4(xm_ptr, right_place)
        right_sum_odd = _load4(xm_ptr, right_place + PLANE)
    left_factor = 1.0
    right_factor = 1.0
    if GROUP > 0:  # a factor per GROUP columns; a group of chunks never spans two
        first = group * (4 if FMT == Q8_0 else 8) // (GROUP // 16) * (GROUP // 16)
        left_factor = _span_factor(ss_ptr, left * (COLS // 16) + first, eps, GROUP)
        right_factor = _span_factor(ss_ptr, right * (COLS // 16) + first, eps, GROUP)
    c0, c1, c2, c3 = sums
    for i in tl.static_range(4):
        bits_above = q_above[i]
        bits_below = q_below[i]
        more_above = q_above[i]
        more_below = q_below[i]
        if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K or FMT == Q6_K:
            bits_above = _quad_take(_flat(above[1]), i, NATIVE)
            bits_below = _quad_take(_flat(below[1]), i, NATIVE)
        if FMT == Q6_K:
            more_above = _quad_take(_flat(above[2]), i, NATIVE)
            more_below = _quad_take(_flat(below[2]), i, NATIVE)
        low_above, high_above = _unpack(FMT, q_above[i], bits_above, more_above, t, NATIVE)
        low_below, high_below = _unpack(FMT, q_below[i], bits_below, more_below, t, NATIVE)
        up = _quad_take(s_above, i, NATIVE)
        down = _quad_take(s_below, i, NATIVE)
        e0, e1, e2, e3 = _mma(low_above, low_below, x_even[0][i], x_even[1][i], W, NATIVE)
        if HAS_TWO_SCALES:
            up_high = _quad_take(tl.where(is_real, _flat(sh_above), 0.0), i, NATIVE)
            down_high = _quad_take(tl.where(is_real, _flat(sh_below), 0.0), i, NATIVE)
            o0, o1, o2, o3 = _mma(high_above, high_below, x_odd[0][i], x_odd[1][i], W, NATIVE)
            p0 = e0 * left_even[i] * up + o0 * left_odd[i] * up_high
            p1 = e1 * right_even[i] * up + o1 * right_odd[i] * up_high
            p2 = e2 * left_even[i] * down + o2 * left_odd[i] * down_high
            p3 = e3 * right_even[i] * down + o3 * right_odd[i] * down_high
            if FMT == Q6_K:  # its integers are 32 too large
                p0 -= 32.0 * (left_sum_even[i] * up + left_sum_odd[i] * up_high)
                p1 -= 32.0 * (right_sum_even[i] * up + right_sum_odd[i] * up_high)
                p2 -= 32.0 * (left_sum_even[i] * down + left_sum_odd[i] * down_high)
                p3 -= 32.0 * (right_sum_even[i] * down + right_sum_odd[i] * down_high)
        elif FMT == Q8_0:
            p0 = e0 * left_even[i] * up
            p1 = e1 * right_even[i] * up
            p2 = e2 * left_even[i] * down
            p3 = e3 * right_even[i] * down
        else:
            o0, o1, o2, o3 = _mma(high_above, high_below, x_odd[0][i], x_odd[1][i], W, NATIVE)
            p0 = (e0 * left_even[i] + o0 * left_odd[i]) * up
            p1 = (e1 * right_even[i] + o1 * right_odd[i]) * up
            p2 = (e2 * left_even[i] + o2 * left_odd[i]) * down
            p3 = (e3 * right_even[i] + o3 * right_odd[i]) * down
            if HAS_MINIMUM:
                up_minimum = _quad_take(tl.where(is_real, _flat(mn_above), 0.0), i, NATIVE)
                down_minimum = _quad_take(tl.where(is_real, _flat(mn_below), 0.0), i, NATIVE)
                left_sum = left_sum_even[i] + left_sum_odd[i]
                right_sum = right_sum_even[i] + right_sum_odd[i]
                p0 -= up_minimum * left_sum
                p1 -= up_minimum * right_sum
                p2 -= down_minimum * left_sum
                p3 -= down_minimum * right_sum
        c0 += p0 * left_factor
        c1 += p1 * right_factor
        c2 += p2 * left_factor
        c3 += p3 * right_factor
    return c0, c1, c2, c3


@triton.jit
def _rows_by_tokens(sums, W: tl.constexpr):
    """The four results of every warp, added up -> [16 rows, 8 tokens] f32."""
    c0, c1, c2, c3 = sums
    top = tl.reshape(tl.join(tl.reshape(c0, (W, 32)), tl.reshape(c1, (W, 32))), (W, 64))
    bottom = tl.reshape(tl.join(tl.reshape(c2, (W, 32)), tl.reshape(c3, (W, 32))), (W, 64))
    both = tl.permute(tl.join(tl.sum(top, axis=0), tl.sum(bottom, axis=0)), (1, 0))
    return tl.reshape(both, (16, 8))


@triton.jit
def warp_rows(first_row, W: tl.constexpr):
    """Row of each lane's upper fragment, [32 W] int64, for the 16 rows from `first_row` on."""
    lane = tl.arange(0, W * 32) % 32
    return (first_row + lane // 4).to(tl.int64)


@triton.jit
def first_groups(
    FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr
):
    """The first DEPTH groups of every warp, which `mma_rows` consumes; they need no activation."""
    GROUPS: tl.constexpr = COLS // (64 if FMT == Q8_0 else 128)
    warp = tl.arange(0, W * 32) // 32
    tiles = ()
    for step in tl.static_range(DEPTH):
        group = tl.minimum(step * W + warp, GROUPS - 1)
        tiles = tiles + (load_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, COLS),)
    return tiles


@triton.jit
def mma_rows(
    FMT: tl.constexpr, tiles, q_ptr, h_ptr, s_ptr, d_ptr, rows, x_ptr, xs_ptr, xm_ptr, COLS: tl.constexpr,
    M: tl.constexpr, W: tl.constexpr, DEPTH: tl.constexpr, NATIVE: tl.constexpr, GROUP: tl.constexpr = 0, ss_ptr=None,
    eps=0.0,
):
    """16 rows times M activation rows -> [16, 8] f32 without the norm factor; columns M.. are meaningless.

    The order of additions depends on the matrix and W only, not on M. GROUP as in `dot_rows`.
    """
    GROUPS: tl.constexpr = COLS // (64 if FMT == Q8_0 else 128)
    STEPS: tl.constexpr = (GROUPS + W - 1) // W
    warp = tl.arange(0, W * 32) // 32
    zero = tl.zeros((W * 32,), tl.float32)
    sums = (zero, zero, zero, zero)
    for start in tl.range(0, STEPS, DEPTH):
        next_tiles = ()
        for ahead in tl.static_range(DEPTH):
            group = tl.minimum((start + DEPTH + ahead) * W + warp, GROUPS - 1)
            next_tiles = next_tiles + (load_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, COLS),)
        for ahead in tl.static_range(DEPTH):
            group = (start + ahead) * W + warp
            sums = add_group(FMT, sums, tiles[ahead], tl.minimum(group, GROUPS - 1), group < GROUPS, x_ptr, xs_ptr,
                             xm_ptr,
                             COLS, M, W, GROUP, ss_ptr, eps, NATIVE)
        tiles = next_tiles
    return _rows_by_tokens(sums, W)
