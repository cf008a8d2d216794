"""Device functions: the columns of a row that a lane keeps for the matrix instruction, and a token's that meet them.

Values lie as `quant_mma` says. Knows no arithmetic.
Reference: kernels/reference/quant_weight.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.quant_dot import split4
from kernels.quant_unpack import IQ4_XS, NVFP4, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0


@triton.jit
def _chunk_tile(q, bits, more_bits, scale, super_scale):
    """What `load_tile` returns, of values one to a lane."""
    N: tl.constexpr = scale.shape[0]
    return (tl.reshape(q, (N, 1, 1, 4)), tl.reshape(bits, (N, 1, 1)), tl.reshape(more_bits, (N, 1, 1)),
            tl.reshape(scale, (N, 1, 1)), tl.reshape(super_scale, (N, 1, 1)))


@triton.jit
def _load_bytes(q_ptr, s_ptr, rows, group, t, COLS: tl.constexpr):
    """Each lane's 64 columns of its row of Q8_0: every fourth chunk of 16."""
    q_ptr += (rows * (COLS // 4) + group * 64 + t * 4)[:, None] + tl.arange(0, 4)[None, :]
    scales = tl.load(s_ptr + (rows * (COLS // 32) + group * 8)[:, None] + tl.arange(0, 8)[None, :])
    even, odd = tl.split(tl.reshape(scales, (rows.shape[0], 4, 2)))
    s0, s1, s2, s3 = split4(tl.where((t < 2)[:, None], even, odd))
    return (_chunk_tile(tl.load(q_ptr), s0, s0, s0, s0), _chunk_tile(tl.load(q_ptr + 16), s1, s1, s1, s1),
            _chunk_tile(tl.load(q_ptr + 32), s2, s2, s2, s2), _chunk_tile(tl.load(q_ptr + 48), s3, s3, s3, s3))


@triton.jit
def _load_nibbles(FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, t, COLS: tl.constexpr):
    """Each lane's 64 columns of its row: two neighbouring chunks of 32."""
    q_ptr += (rows * (COLS // 8) + group * 32 + t * 8)[:, None] + tl.arange(0, 4)[None, :]
    block = rows * (COLS // 32) + group * 8 + t * 2
    pair = block[:, None] + tl.arange(0, 2)[None, :]
    s0, s1 = tl.split(tl.load(s_ptr + pair))
    b0 = s0
    b1 = s1
    m0 = s0
    m1 = s1
    d = s0
    if FMT == Q5_0 or FMT == Q5_1 or FMT == Q5_K:
        b0, b1 = tl.split(tl.load(h_ptr + pair))
    if FMT == Q6_K:
        b0, m0, b1, m1 = split4(tl.load(h_ptr + (block * 2)[:, None] + tl.arange(0, 4)[None, :]))
    if FMT == Q4_K or FMT == Q5_K or FMT == Q6_K or FMT == IQ4_XS:
        d = tl.load(d_ptr + rows * (COLS // 256) + group)
    if FMT == NVFP4:
        d = tl.load(d_ptr + rows)
    return _chunk_tile(tl.load(q_ptr), b0, m0, s0, d), _chunk_tile(tl.load(q_ptr + 4), b1, m1, s1, d)


@triton.jit
def load_group(FMT: tl.constexpr, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, COLS: tl.constexpr):
    """A lane's columns of its row and of the row eight below."""
    t = tl.arange(0, rows.shape[0]) % 4
    if FMT == Q8_0:
        above = _load_bytes(q_ptr, s_ptr, rows, group, t, COLS)
        below = _load_bytes(q_ptr, s_ptr, rows + 8, group, t, COLS)
    else:
        above = _load_nibbles(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows, group, t, COLS)
        below = _load_nibbles(FMT, q_ptr, h_ptr, s_ptr, d_ptr, rows + 8, group, t, COLS)
    return above, below


@triton.jit
def load_tokens(x_ptr, group):
    """Each lane's columns of its token, 32 words; x_ptr: `HalfRows.values` as int32 words."""
    lane = tl.arange(0, group.shape[0]) % 32
    first = (x_ptr + group * 1024 + lane * 4)[:, None] + tl.arange(0, 4)[None, :]
    words = ()
    for i in tl.static_range(8):
        words = words + split4(tl.load(first + i * 128))
    return words
