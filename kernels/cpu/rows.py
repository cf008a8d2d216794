"""Kernels over rows of activations: norm, gated activation, and the 8-bit records that quantised products read.

Arguments are listed above each kernel in the order of their words.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.program import jit_kernel, jit_part
from kernels.cpu.simd import (
    Address,
    Double,
    Float,
    Int,
    Vector,
    Void,
    exponential,
    largest_of,
    load,
    load_f64,
    load_i64,
    magnitude,
    maximum,
    nearest,
    spread,
    store,
    store_f32,
    store_i8,
    store_i32,
    sum_of,
    whole_of,
)

RECORD = 96  # bytes of 32 columns, drawn in quant_tile.py
SILU, GELU_TANH = 0, 1
ZERO, INT8_MAX, LEVELS = np.float32(0.0), np.float32(127.0), np.float32(127 * 256 + 127)
BASE, HALF, PART = np.float32(256.0), np.float32(128.0), np.float32(1.0 / 256.0)


@jit_part(Void, Vector, Vector, Address)
def jit_quantize(x, y, record):
    """32 floats as one record: scale = max |x| / 32639; a NaN or infinity makes the scale NaN."""
    largest = largest_of(maximum(magnitude(x), magnitude(y)))
    scale = largest / LEVELS + sum_of((x + y) * spread(ZERO))
    inverse = spread(LEVELS / largest if largest > ZERO else ZERO)
    x, y = nearest(x * inverse), nearest(y * inverse)
    high_x, high_y = whole_of((x + spread(HALF)) * spread(PART)), whole_of((y + spread(HALF)) * spread(PART))
    store_i8(record, high_x)
    store_i8(record + 16, high_y)
    store_i8(record + 32, x - high_x * spread(BASE))
    store_i8(record + 48, y - high_y * spread(BASE))
    first, second = sum_of(x), sum_of(y)
    store_f32(record + 64, scale)
    store_f32(record + 68, scale * (first + second))
    store_i32(record + 72, -np.int64(first + second))
    store_i32(record + 76, -np.int64(first))
    store_i32(record + 80, -np.int64(second))


@jit_part(Vector, Vector)
def jit_sigmoid(x):
    one = spread(np.float32(1.0))
    return one / (one + exponential(spread(ZERO) - x))


@jit_part(Vector, Vector)
def jit_gelu_tanh(x):
    """0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    u = x + spread(np.float32(0.044715)) * (x * x * x)
    return x * jit_sigmoid(u * spread(np.float32(1.5957691216057308)))


@jit_part(Float, Address, Int, Double)
def jit_root_mean_square(x, size, eps):
    """1 / sqrt(mean(x^2) + eps) over `size` floats, eps a float64."""
    total = spread(ZERO)
    for i in range(0, size, 16):
        v = load(x + 4 * i)
        total = total + v * v
    return np.float32(1.0) / np.sqrt(sum_of(total) / np.float32(size) + np.float32(eps))


# x, x_bytes, weight (0: none), out (0: none), out_bytes, records (0: none), record_bytes, size, eps (f64), rows (0:
# all, else the word of the step that holds their list), add (0: none; out += the result)
@jit_kernel
def norm_kernel(args, step, begin, end, thread):
    """A row: out = x / rms * weight, and its records."""
    x_base, x_bytes, weight, out_base = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
    out_bytes, records, record_bytes = load_i64(args + 32), load_i64(args + 40), load_i64(args + 48)
    size, eps, rows, adds = load_i64(args + 56), load_f64(args + 64), load_i64(args + 72), load_i64(args + 80)
    for row in range(begin, end):
        source = row if rows == 0 else load_i64(load_i64(step + 8 * rows) + 8 * row)
        x, out, record = x_base + source * x_bytes, out_base + row * out_bytes, records + row * record_bytes
        factor = spread(jit_root_mean_square(x, size, eps))
        for i in range(0, size, 32):
            u, v = load(x + 4 * i) * factor, load(x + 4 * i + 64) * factor
            if weight != 0:
                u, v = u * load(weight + 4 * i), v * load(weight + 4 * i + 64)
            if records != 0:
                jit_quantize(u, v, record + 3 * i)
            if adds != 0:
                u, v = load(out + 4 * i) + u, load(out + 4 * i + 64) + v
            if out_base != 0:
                store(out + 4 * i, u)
                store(out + 4 * i + 64, v)


# x, x_bytes, records (0: none), record_bytes, out (0: none), out_bytes, size, kind
@jit_kernel
def activate_kernel(args, step, begin, end, thread):
    """32 columns of a row: act(x[i]) * x[size + i], as records, or floats."""
    x_base, x_bytes, records = load_i64(args), load_i64(args + 8), load_i64(args + 16)
    record_bytes = load_i64(args + 24)
    out, out_bytes, size, kind = load_i64(args + 32), load_i64(args + 40), load_i64(args + 48), load_i64(args + 56)
    blocks = size // 32
    for unit in range(begin, end):
        row, block = unit // blocks, unit % blocks
        x = x_base + row * x_bytes + block * 128
        u, v = load(x), load(x + 64)
        if kind == SILU:
            u, v = u * jit_sigmoid(u), v * jit_sigmoid(v)
        else:
            u, v = jit_gelu_tanh(u), jit_gelu_tanh(v)
        u, v = u * load(x + 4 * size), v * load(x + 4 * size + 64)
        if records != 0:
            jit_quantize(u, v, records + row * record_bytes + block * RECORD)
        if out != 0:
            at = out + row * out_bytes + block * 128
            store(at, u)
            store(at + 64, v)
