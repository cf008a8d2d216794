"""What happens to queries, keys and values between their projection and attention. Knows rows; never weights."""

from __future__ import annotations

import numpy as np

from kernels.cpu.program import POSITIONS, SLOTS, jit_kernel, jit_part
from kernels.cpu.rows import INT8_MAX, ZERO, jit_root_mean_square
from kernels.cpu.simd import (
    Address,
    Double,
    Float,
    Int,
    Vector,
    Void,
    largest_of,
    load,
    load_f16,
    load_f32,
    load_f64,
    load_i64,
    magnitude,
    maximum,
    nearest,
    spread,
    store,
    store_bf16,
    store_f16,
    store_f32,
    store_halves,
    store_i8,
    sum_of,
)

ROPE_NONE, ROPE_HALVES, ROPE_INTERLEAVED = 0, 1, 2
KV_F32, KV_F16, KV_BF16, KV_INT8 = 0, 1, 2, 3
POOL_KINDS = {"f32": KV_F32, "f16": KV_F16, "bf16": KV_BF16, "int8": KV_INT8}
F16_MAX = np.float32(65504.0)


@jit_part(Void, Address, Int, Address, Double, Address, Address, Int, Int, Float)
def jit_norm_and_turn(x, head_dim, weight, eps, cos, sin, half, kind, factor):
    """In place: norm (weight 0: none), rotation of the first 2 * half elements, multiplication by `factor`."""
    if weight != 0:
        scale = spread(jit_root_mean_square(x, head_dim, eps))
        for i in range(0, head_dim, 16):
            store(x + 4 * i, load(x + 4 * i) * scale * load(weight + 4 * i))
    if kind == ROPE_HALVES:
        for i in range(half):
            u, v = load_f32(x + 4 * i), load_f32(x + 4 * (half + i))
            c, s = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
            store_f32(x + 4 * i, u * c - v * s)
            store_f32(x + 4 * (half + i), v * c + u * s)
    elif kind == ROPE_INTERLEAVED:
        for i in range(half):
            u, v = load_f32(x + 8 * i), load_f32(x + 8 * i + 4)
            c, s = load_f32(cos + 4 * i), load_f32(sin + 4 * i)
            store_f32(x + 8 * i, u * c - v * s)
            store_f32(x + 8 * i + 4, v * c + u * s)
    if factor != np.float32(1.0):
        for i in range(0, head_dim, 16):
            store(x + 4 * i, load(x + 4 * i) * spread(factor))


@jit_part(Vector, Vector, Float)
def jit_clamp(x, limit):
    """Between -limit and limit; NaN stays NaN."""
    return spread(ZERO) - maximum(spread(ZERO) - maximum(x, spread(-limit)), spread(-limit))


@jit_part(Void, Address, Int, Address, Address, Int, Int)
def jit_store_head(x, head_dim, cache, scale, row, kind):
    """A head's row into the pool in the pool's type; int8 as kernels/reference/store_kv.py has it."""
    if kind == KV_F32:
        for i in range(0, head_dim, 16):
            store(cache + (row * head_dim + i) * 4, load(x + 4 * i))
    elif kind == KV_F16:
        for i in range(0, head_dim, 16):
            store_halves(cache + (row * head_dim + i) * 2, jit_clamp(load(x + 4 * i), F16_MAX))
    elif kind == KV_BF16:
        for i in range(0, head_dim, 16):
            store_bf16(cache + (row * head_dim + i) * 2, load(x + 4 * i))
    else:
        largest, defect = spread(ZERO), spread(ZERO)
        for i in range(0, head_dim, 16):
            largest = maximum(largest, magnitude(load(x + 4 * i)))
            defect = defect + load(x + 4 * i) * spread(ZERO)
        at = scale + 2 * row
        store_f16(at, largest_of(largest) / INT8_MAX + sum_of(defect))
        step = load_f16(at)
        inverse = spread(np.float32(1.0) / step if step != ZERO else ZERO)
        for i in range(0, head_dim, 16):
            q = nearest(load(x + 4 * i) * inverse)
            store_i8(cache + row * head_dim + i, jit_clamp(q, INT8_MAX))


# x, x_bytes, offsets of q, k, v in it, q_head_bytes, query heads, kv heads, head_dim, q norm, k norm (0: none), eps
# (f64), word of cos, half, kind, keys, values, key scales, value scales, kind of pool, scale (f64)
@jit_kernel
def rope_store_kernel(args, step, begin, end, thread):
    """A row: norm and rotate queries and keys, scale queries, store keys and values."""
    x_base, x_bytes, q_at, k_at, v_at = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    q_head, q_heads, kv_heads, head_dim = (
        load_i64(args + 40), load_i64(args + 48), load_i64(args + 56), load_i64(args + 64)
    )
    q_norm, k_norm, eps, angles = load_i64(args + 72), load_i64(args + 80), load_f64(args + 88), load_i64(args + 96)
    half, kind, pool = load_i64(args + 104), load_i64(args + 112), load_i64(args + 152)
    scale = np.float32(load_f64(args + 160))
    cos_base, sin_base = load_i64(step + 8 * angles), load_i64(step + 8 * angles + 8)
    for row in range(begin, end):
        x = x_base + row * x_bytes
        turned = load_i64(load_i64(step + 8 * POSITIONS) + 8 * row) * half * 4
        cos, sin = cos_base + turned, sin_base + turned
        slot = load_i64(load_i64(step + 8 * SLOTS) + 8 * row) * kv_heads
        for head in range(q_heads):
            jit_norm_and_turn(x + q_at + head * q_head, head_dim, q_norm, eps, cos, sin, half, kind, scale)
        for head in range(kv_heads):
            key, value = x + k_at + head * head_dim * 4, x + v_at + head * head_dim * 4
            jit_norm_and_turn(key, head_dim, k_norm, eps, cos, sin, half, kind, np.float32(1.0))
            jit_store_head(key, head_dim, load_i64(args + 120), load_i64(args + 136), slot + head, pool)
            jit_store_head(value, head_dim, load_i64(args + 128), load_i64(args + 144), slot + head, pool)
