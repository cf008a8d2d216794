"""Device functions: 16 quantised rows times up to 8 rows of f16 numbers on the tensor cores (m16n8k16).

Owns the arithmetic of few tokens; knows no grid. Values live one to a thread in tensors of 32 * W elements, lane
4g + t of warp w at 32w + 4g + t, which is how the matrix instruction numbers its fragments: A holds rows g and g + 8, B
token g, the result tokens 2t and 2t + 1. The order of columns inside a product is free as long as both sides agree: so
each lane keeps the 64 columns of a row that it loaded, every step multiplies four of each lane's own, and nothing is
exchanged. Weights become f16 numbers with their scale, times WEIGHT_SCALE to stay clear of f16's subnormal numbers.
Without tensor cores of this kind (interpreter, AMD) the same products are spelled out in tensor operations.
Reference: kernels/reference/quant_weight.py (values), kernels/reference/quant_gemv.py (products).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.behind_loads import zero_behind_loads
from kernels.lane_groups import load_group, load_tokens
from kernels.quant_dot import _byte, split4
from kernels.quant_unpack import NVFP4, Q6_K, Q8_0, has_minimum, unpack_scales, unpack_words
from kernels.warp_sums import tokens_by_rows

WEIGHT_SCALE = tl.constexpr(64.0)

# $4 $5: four bytes of rows g and g + 8; 0x64 above a byte makes the f16 number 1024 + byte, $6 is what to subtract;
# $7 to $10: scale and negative minimum of either row, twice each; $11 $12: columns 0, 2 and 1, 3 of the token
_STEP_ASM = tl.constexpr("""{ .reg .b32 p, q, u, v, k; mov.b32 k, 0x64646464;
prmt.b32 p, $4, k, 0x4240; prmt.b32 q, $4, k, 0x4341; prmt.b32 u, $5, k, 0x4240; prmt.b32 v, $5, k, 0x4341;
sub.rn.f16x2 p, p, $6; sub.rn.f16x2 q, q, $6; sub.rn.f16x2 u, u, $6; sub.rn.f16x2 v, v, $6;
fma.rn.f16x2 p, p, $7, $8; fma.rn.f16x2 q, q, $7, $8; fma.rn.f16x2 u, u, $9, $10; fma.rn.f16x2 v, v, $9, $10;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {p,u,q,v}, {$11,$12}, {$13,$14,$15,$16}; }""")


@triton.constexpr_function
def is_signed(fmt):
    return fmt in (8, 20, 23, 39, 40)


GROUP = tl.constexpr(256)  # columns that a quad takes at once, 64 a lane


@triton.jit
def _half(word, HIGH: tl.constexpr):
    bits = (word >> 16) if HIGH else word
    return (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _twice(x):
    """A number as f16, in both halves of a word."""
    bits = x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return bits | (bits << 16)


@triton.jit
def _products(word, scale, minimum, x0, x1, OFFSET: tl.constexpr, W: tl.constexpr):
    """The spelled-out multiplication: words [32 W] of rows g, x of tokens g -> tokens 2t and 2t + 1 of row g."""
    total = tl.zeros((W, 8, 8, 4), tl.float32)
    for i in tl.static_range(4):
        w = ((_byte(word, i).to(tl.float32) - OFFSET) * scale + minimum).to(tl.float16).to(tl.float32)
        x = _half(x0 if i % 2 == 0 else x1, i >= 2)
        total += tl.reshape(w, (W, 8, 1, 4)) * tl.reshape(x, (W, 1, 8, 4))
    even, odd = tl.split(tl.reshape(tl.sum(total, axis=3), (W, 8, 4, 2)))
    return tl.reshape(even, (W * 32,)), tl.reshape(odd, (W * 32,))


@triton.jit
def _step(sums, above, below, scales, x0, x1, FMT: tl.constexpr, W: tl.constexpr, NATIVE: tl.constexpr):
    """sums (row g with tokens 2t and 2t + 1, row g + 8 with the same) + four columns of each lane's.

    above, below: words of four bytes; scales: (scale, negative minimum) of row g, the same of g + 8
    """
    c0, c1, c2, c3 = sums
    if NATIVE:
        if is_signed(FMT):
            above = above ^ -0x7F7F7F80
            below = below ^ -0x7F7F7F80
        OFFSET: tl.constexpr = 0x64806480 if is_signed(FMT) else (0x64206420 if FMT == Q6_K else 0x64006400)
        offset = tl.full(above.shape, OFFSET, tl.int32)
        c0, c1, c2, c3 = tl.inline_asm_elementwise(
            _STEP_ASM, "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,f,f,f,f",
            [above, below, offset, scales[0], scales[1], scales[2], scales[3], x0, x1, c0, c1, c2, c3],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )
    else:
        MINUS: tl.constexpr = 32 if FMT == Q6_K else 0
        d0, d1 = _products(above, _half(scales[0], False), _half(scales[1], False), x0, x1, MINUS, W)
        d2, d3 = _products(below, _half(scales[2], False), _half(scales[3], False), x0, x1, MINUS, W)
        c0 += d0
        c1 += d1
        c2 += d2
        c3 += d3
    return c0, c1, c2, c3


@triton.jit
def _scale_pairs(FMT: tl.constexpr, tile, is_real, MASKED: tl.constexpr):
    """(scale of columns 0..15, of 16..31, negative minimum) of a lane's chunk, as `_twice` makes them."""
    scale, scale_high, minimum = unpack_scales(FMT, tile)
    N: tl.constexpr = scale.shape[0]
    factor = tl.full((N,), WEIGHT_SCALE, tl.float32)
    if MASKED:
        factor = tl.where(is_real, factor, 0.0)
    low = _twice(tl.reshape(scale, (N,)) * factor)
    high = low
    if FMT == Q6_K or FMT == NVFP4:
        high = _twice(tl.reshape(scale_high, (N,)) * factor)
    negative = tl.zeros((N,), tl.int32)
    if has_minimum(FMT):
        negative = _twice(tl.reshape(minimum, (N,)) * -factor)
    return low, high, negative


@triton.jit
def _words(FMT: tl.constexpr, tile, NATIVE: tl.constexpr):
    """(four words of columns 0..15, four of 16..31) of a lane's chunk."""
    N: tl.constexpr = tile[0].shape[0]
    low, high = unpack_words(FMT, tile, NATIVE)
    return split4(tl.reshape(low, (N, 4))), split4(tl.reshape(high, (N, 4)))


@triton.jit
def add_group(
    FMT: tl.constexpr, sums, tile, tokens, is_real, MASKED: tl.constexpr, W: tl.constexpr, NATIVE: tl.constexpr
):
    """sums + one group times `load_tokens`; MASKED: a group that is not real adds nothing.

    sums: chains of four numbers that take turns: with two, a product need not wait for the one before it
    """
    above, below = tile
    WORDS: tl.constexpr = 8 if FMT == Q8_0 else 16  # of tokens, a chunk
    for c in tl.static_range(4 if FMT == Q8_0 else 2):
        low_a, high_a, minimum_a = _scale_pairs(FMT, above[c], is_real, MASKED)
        low_b, high_b, minimum_b = _scale_pairs(FMT, below[c], is_real, MASKED)
        first_a, second_a = _words(FMT, above[c], NATIVE)
        first_b, second_b = _words(FMT, below[c], NATIVE)
        low = (low_a, minimum_a, low_b, minimum_b)
        high = (high_a, minimum_a, high_b, minimum_b)
        for i in tl.static_range(4):
            sums = sums[1:] + (_step(sums[0], first_a[i], first_b[i], low, tokens[WORDS * c + 2 * i],
                                     tokens[WORDS * c + 2 * i + 1], FMT, W, NATIVE),)
        if FMT != Q8_0:
            for i in tl.static_range(4):
                sums = sums[1:] + (_step(sums[0], second_a[i], second_b[i], high, tokens[WORDS * c + 8 + 2 * i],
                                         tokens[WORDS * c + 9 + 2 * i], FMT, W, NATIVE),)
    return sums


@triton.jit
def warp_rows(first_row, W: tl.constexpr):
    """Row of each lane's upper fragment, [32 W] int64, for the 16 rows from `first_row` on."""
    lane = tl.arange(0, W * 32) % 32
    return (first_row + lane // 4).to(tl.int64)


@triton.constexpr_function
def num_steps(cols, num_warps):
    """Groups that each warp takes, one after another."""
    return -(-cols // 256 // num_warps)


@triton.constexpr_function
def are_few_steps(cols, num_warps):
    """Whether all loads of a warp may be on their way at once; more would leave no registers for other programs."""
    return num_steps(cols, num_warps) <= 2


@triton.constexpr_function
def num_first(cols, num_warps):
    """Groups in `first_groups`."""
    return num_steps(cols, num_warps) if are_few_steps(cols, num_warps) else 1


@triton.jit
def first_group(FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS: tl.constexpr, W: tl.constexpr):
    """Every warp's first group, which `mma_two` consumes; it needs no activation."""
    warp = tl.minimum(tl.arange(0, W * 32) // 32, COLS // GROUP - 1)
    return load_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, warp, COLS)


@triton.jit
def first_groups(FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, COLS: tl.constexpr, W: tl.constexpr):
    """Every warp's first groups, which `mma_rows` consumes; they need no activation."""
    warp = tl.arange(0, W * 32) // 32
    tiles = ()
    for step in tl.static_range(num_first(COLS, W)):
        group = tl.minimum(warp + step * W, COLS // GROUP - 1)
        tiles = tiles + (load_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, COLS),)
    return tiles


@triton.jit
def first_tokens(x_ptr, COLS: tl.constexpr, W: tl.constexpr):
    """The tokens' columns that meet all groups, where those are few: `mma_rows` needs them then."""
    warp = tl.arange(0, W * 32) // 32
    tokens = ()
    if are_few_steps(COLS, W):
        for step in tl.static_range(num_first(COLS, W)):
            tokens = tokens + (load_tokens(x_ptr, tl.minimum(warp + step * W, COLS // GROUP - 1)),)
    return tokens


@triton.jit
def mma_rows(
    FMT: tl.constexpr, tiles, tokens, q_ptr, h_ptr, s_ptr, d_ptr, rows, x_ptr, COLS: tl.constexpr, W: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """16 rows times 8 rows of `HalfRows.values` -> [`result_tokens`, 16] f32 without the rows' factors.

    The order of additions depends on the matrix and W only, not on the number of tokens.
    """
    GROUPS: tl.constexpr = COLS // GROUP
    STEPS: tl.constexpr = num_steps(COLS, W)
    MASKED: tl.constexpr = GROUPS % W != 0
    group = tl.arange(0, W * 32) // 32
    zero = tl.zeros((W * 32,), tl.float32)
    if are_few_steps(COLS, W):
        zero += zero_behind_loads(NATIVE)
        sums = ((zero, zero, zero, zero), (zero, zero, zero, zero))
        for step in tl.static_range(STEPS):
            sums = add_group(FMT, sums, tiles[step], tokens[step], group + step * W < GROUPS,
                             MASKED and step == STEPS - 1, W, NATIVE)
    else:
        sums = ((zero, zero, zero, zero),)
        tile = tiles[0]
        for _ in tl.range(0, STEPS - 1):
            later = load_group(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, tl.minimum(group + W, GROUPS - 1), COLS)
            sums = add_group(FMT, sums, tile, load_tokens(x_ptr, group), group < GROUPS, False, W, NATIVE)
            tile = later
            group += W
        tokens = load_tokens(x_ptr, tl.minimum(group, GROUPS - 1))
        sums = add_group(FMT, sums, tile, tokens, group < GROUPS, MASKED, W, NATIVE)
    return tokens_by_rows(sums, W, NATIVE) * (1.0 / WEIGHT_SCALE)


@triton.jit
def mma_two(
    FMT: tl.constexpr, a_tile, aq_ptr, ah_ptr, as_ptr, ad_ptr, b_tile, bq_ptr, bh_ptr, bs_ptr, bd_ptr, rows, x_ptr,
    COLS: tl.constexpr, W: tl.constexpr, NATIVE: tl.constexpr,
):
    """`mma_rows` of two matrices of one format, whose rows share what is read of x; tiles: the first group's."""
    GROUPS: tl.constexpr = COLS // GROUP
    STEPS: tl.constexpr = num_steps(COLS, W)
    MASKED: tl.constexpr = GROUPS % W != 0
    group = tl.arange(0, W * 32) // 32
    zero = tl.zeros((W * 32,), tl.float32)
    a_sums = ((zero, zero, zero, zero),)
    b_sums = ((zero, zero, zero, zero),)
    for _ in tl.range(0, STEPS - 1):
        following = tl.minimum(group + W, GROUPS - 1)
        a_later = load_group(FMT, aq_ptr, ah_ptr, as_ptr, ad_ptr, rows, following, COLS)
        b_later = load_group(FMT, bq_ptr, bh_ptr, bs_ptr, bd_ptr, rows, following, COLS)
        tokens = load_tokens(x_ptr, group)
        a_sums = add_group(FMT, a_sums, a_tile, tokens, group < GROUPS, False, W, NATIVE)
        b_sums = add_group(FMT, b_sums, b_tile, tokens, group < GROUPS, False, W, NATIVE)
        a_tile = a_later
        b_tile = b_later
        group += W
    tokens = load_tokens(x_ptr, tl.minimum(group, GROUPS - 1))
    a_sums = add_group(FMT, a_sums, a_tile, tokens, group < GROUPS, MASKED, W, NATIVE)
    b_sums = add_group(FMT, b_sums, b_tile, tokens, group < GROUPS, MASKED, W, NATIVE)
    FACTOR: tl.constexpr = 1.0 / WEIGHT_SCALE
    return tokens_by_rows(a_sums, W, NATIVE) * FACTOR, tokens_by_rows(b_sums, W, NATIVE) * FACTOR
