"""The recurrent layer between its projections, row by row: convolution, gated delta rule, gated norm.

Decode and prompts are the same code: a sequence's rows in turn, its state in the pool.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.cpu.program import SPANS, jit_kernel, jit_part
from kernels.cpu.rows import ZERO, jit_quantize, jit_root_mean_square, jit_sigmoid
from kernels.cpu.simd import (
    Address,
    Float,
    Int,
    Void,
    load,
    load_f32,
    load_f64,
    load_i64,
    multiply_add,
    spread,
    spread_at,
    stack_bytes,
    store,
    store_f32,
    sum_of,
)

TAPS = 4
L2_EPS = np.float32(1e-6)


# x, x_bytes, channels, weight [4, channels], conv pool, bytes of its slot
@jit_kernel
def conv_kernel(args, step, begin, end, thread):
    """16 channels of a sequence: x <- silu(convolution), in place; the pool keeps a channel's last three inputs."""
    x_base, x_bytes, channels, weight, pool, slot_bytes = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32),
        load_i64(args + 40),
    )
    groups = channels // 16
    spare = stack_bytes(192)
    for unit in range(begin, end):
        span, channel = load_i64(step + 8 * SPANS) + 24 * (unit // groups), unit % groups * 16
        row, num_rows, slot = load_i64(span), load_i64(span + 8), load_i64(span + 16)
        state = pool + slot * slot_bytes + channel * 12
        for i in range(16):
            for tap in range(3):
                store_f32(spare + 64 * tap + 4 * i, load_f32(state + 12 * i + 4 * tap))
        a, b, c = load(spare), load(spare + 64), load(spare + 128)
        w = weight + 4 * channel
        w0, w1, w2, w3 = load(w), load(w + 4 * channels), load(w + 8 * channels), load(w + 12 * channels)
        for r in range(row, row + num_rows):
            at = x_base + r * x_bytes + 4 * channel
            d = load(at)
            y = multiply_add(c, w2, multiply_add(b, w1, multiply_add(a, w0, d * w3)))
            store(at, y * jit_sigmoid(y))
            a, b, c = b, c, d
        store(spare, a)
        store(spare + 64, b)
        store(spare + 128, c)
        for i in range(16):
            for tap in range(3):
                store_f32(state + 12 * i + 4 * tap, load_f32(spare + 64 * tap + 4 * i))


@jit_part(Void, Address, Int, Float)
def jit_l2_normalize(x, head_dim, factor):
    total = spread(ZERO)
    for i in range(0, head_dim, 16):
        total = total + load(x + 4 * i) * load(x + 4 * i)
    scale = spread(factor / np.sqrt(sum_of(total) + L2_EPS))
    for i in range(0, head_dim, 16):
        store(x + 4 * i, load(x + 4 * i) * scale)


# x, x_bytes, key heads, value heads, head_dim, alpha (offset), beta (offset), a, dt bias, gates [rows, 2 value heads]
@jit_kernel
def gates_kernel(args, step, begin, end, thread):
    """A row: unit queries (scaled) and keys in place; gates <- decay factors, then write strengths."""
    x_base, x_bytes, key_heads, heads, head_dim = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    alpha, beta, a, bias, gates = (
        load_i64(args + 40), load_i64(args + 48), load_i64(args + 56), load_i64(args + 64), load_i64(args + 72)
    )
    for row in range(begin, end):
        x, out = x_base + row * x_bytes, gates + row * heads * 8
        for head in range(2 * key_heads):
            factor = np.float32(1.0 / math.sqrt(head_dim)) if head < key_heads else np.float32(1.0)
            jit_l2_normalize(x + head * head_dim * 4, head_dim, factor)
        for head in range(heads):
            t = np.float64(load_f32(x + alpha + 4 * head)) + np.float64(load_f32(bias + 4 * head))
            softplus = t if t > 20.0 else math.log1p(math.exp(t))
            store_f32(out + 4 * head, np.float32(math.exp(np.float64(load_f32(a + 4 * head)) * softplus)))
            strength = 1.0 / (1.0 + math.exp(-np.float64(load_f32(x + beta + 4 * head))))
            store_f32(out + 4 * (heads + head), np.float32(strength))


# x, x_bytes, key heads, value heads, head_dim, gates, out, out_bytes, state pool, bytes of its slot
@jit_kernel
def delta_kernel(args, step, begin, end, thread):
    """16 value columns of a head of a sequence: S <- g S; S <- S + k (beta (v - S^T k))^T; out = S^T q, row by row."""
    x_base, x_bytes, key_heads, heads, head_dim = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    gates, out_base, out_bytes, pool, slot_bytes = (
        load_i64(args + 40), load_i64(args + 48), load_i64(args + 56), load_i64(args + 64), load_i64(args + 72)
    )
    groups, pitch = head_dim // 16, head_dim * 4
    for unit in range(begin, end):
        span = load_i64(step + 8 * SPANS) + 24 * (unit // (heads * groups))
        head, column = unit // groups % heads, unit % groups * 64
        row, num_rows, slot = load_i64(span), load_i64(span + 8), load_i64(span + 16)
        state = pool + slot * slot_bytes + head * head_dim * pitch + column
        for r in range(row, row + num_rows):
            x = x_base + r * x_bytes
            q = x + head % key_heads * pitch
            k = q + key_heads * pitch
            decay = spread_at(gates + (r * 2 * heads + head) * 4)
            even, odd = spread(ZERO), spread(ZERO)
            for i in range(0, head_dim, 2):
                even = multiply_add(load(state + i * pitch) * decay, spread_at(k + 4 * i), even)
                odd = multiply_add(load(state + (i + 1) * pitch) * decay, spread_at(k + 4 * i + 4), odd)
            value = load(x + 2 * key_heads * pitch + head * pitch + column)
            error = (value - (even + odd)) * spread_at(gates + (r * 2 * heads + heads + head) * 4)
            even, odd = spread(ZERO), spread(ZERO)
            for i in range(0, head_dim, 2):
                s = multiply_add(spread_at(k + 4 * i), error, load(state + i * pitch) * decay)
                t = multiply_add(spread_at(k + 4 * i + 4), error, load(state + (i + 1) * pitch) * decay)
                store(state + i * pitch, s)
                store(state + (i + 1) * pitch, t)
                even, odd = multiply_add(s, spread_at(q + 4 * i), even), multiply_add(t, spread_at(q + 4 * i + 4), odd)
            store(out_base + r * out_bytes + head * pitch + column, even + odd)


# x, x_bytes, value heads, head_dim, gate, gate_bytes, weight, eps (f64), records (0: none), record_bytes
@jit_kernel
def gated_norm_kernel(args, step, begin, end, thread):
    """A row: x <- x / rms * weight * silu(gate), head by head, and its records."""
    x_base, x_bytes, heads, head_dim, gate_base = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    gate_bytes, weight, eps, records, record_bytes = (
        load_i64(args + 40), load_i64(args + 48), load_f64(args + 56), load_i64(args + 64), load_i64(args + 72)
    )
    for row in range(begin, end):
        for head in range(heads):
            x, gate = x_base + row * x_bytes + head * head_dim * 4, gate_base + row * gate_bytes + head * head_dim * 4
            factor = spread(jit_root_mean_square(x, head_dim, eps))
            for i in range(0, head_dim, 16):
                g = load(gate + 4 * i)
                store(x + 4 * i, load(x + 4 * i) * factor * load(weight + 4 * i) * (g * jit_sigmoid(g)))
        if records != 0:
            at = x_base + row * x_bytes
            for i in range(0, heads * head_dim, 32):
                jit_quantize(load(at + 4 * i), load(at + 4 * i + 64), records + row * record_bytes + 3 * i)
