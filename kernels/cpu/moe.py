"""Choice of experts and the traffic between rows and experts. A pair is a row and one of its experts."""

from __future__ import annotations

import numpy as np

from kernels.cpu.program import NUM_ROWS, jit_kernel
from kernels.cpu.rows import ZERO, jit_sigmoid
from kernels.cpu.simd import (
    load,
    load_f32,
    load_i64,
    multiply_add,
    spread,
    spread_at,
    store,
    store_f32,
    store_i64,
    sum_of,
)


# router logits, row bytes, experts, top_k, weights [rows, top_k] f32, ids [rows, top_k] int64
@jit_kernel
def route_kernel(args, step, begin, end, thread):
    """A row: softmax over all experts, the top_k largest, renormalised; ties take the lower id."""
    logits_base, row_bytes, experts, top_k, weights, ids = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32),
        load_i64(args + 40),
    )
    for row in range(begin, end):
        logits, weight, chosen = logits_base + row * row_bytes, weights + row * top_k * 4, ids + row * top_k * 8
        largest = load_f32(logits)
        for e in range(1, experts):
            largest = max(largest, load_f32(logits + 4 * e))
        total = ZERO
        for e in range(experts):
            p = np.exp(load_f32(logits + 4 * e) - largest)
            store_f32(logits + 4 * e, p)
        for j in range(top_k):
            best, value = 0, np.float32(-1.0)
            for e in range(experts):
                p = load_f32(logits + 4 * e)
                if p > value:
                    best, value = e, p
            store_f32(logits + 4 * best, np.float32(-1.0))
            store_f32(weight + 4 * j, value)
            store_i64(chosen + 8 * j, best)
            total += value
        for j in range(top_k):
            store_f32(weight + 4 * j, load_f32(weight + 4 * j) / total)


# ids, top_k, experts, starts [experts + 1], places [rows, top_k]: where a pair lies in expert order,
# active [experts]: those with pairs, then -1
@jit_kernel
def group_kernel(args, step, begin, end, thread):
    """One unit: order the pairs by expert."""
    ids, top_k, experts, starts, places = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    active, num_active = load_i64(args + 40), 0
    pairs = load_i64(step + 8 * NUM_ROWS) * top_k
    for e in range(experts + 1):
        store_i64(starts + 8 * e, 0)
    for pair in range(pairs):
        at = starts + 8 * (load_i64(ids + 8 * pair) + 1)
        store_i64(at, load_i64(at) + 1)
    for e in range(experts):
        store_i64(starts + 8 * e + 8, load_i64(starts + 8 * e + 8) + load_i64(starts + 8 * e))
    for pair in range(pairs):
        at = starts + 8 * load_i64(ids + 8 * pair)
        store_i64(places + 8 * pair, load_i64(at))
        store_i64(at, load_i64(at) + 1)
    for e in range(experts, 0, -1):
        store_i64(starts + 8 * e, load_i64(starts + 8 * e - 8))
    store_i64(starts, 0)
    for e in range(experts):
        store_i64(active + 8 * e, -1)
    for e in range(experts):
        if load_i64(starts + 8 * e) < load_i64(starts + 8 * e + 8):
            store_i64(active + 8 * num_active, e)
            num_active += 1


# x, x_bytes, out, top_k, places
@jit_kernel
def scatter_kernel(args, step, begin, end, thread):
    """A pair: copy its row (records or floats, a multiple of 32 bytes) to its place."""
    x_base, x_bytes, out, top_k, places = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    for pair in range(begin, end):
        x, at = x_base + pair // top_k * x_bytes, out + load_i64(places + 8 * pair) * x_bytes
        for i in range(0, x_bytes, 4):
            store_f32(at + i, load_f32(x + i))


# pairs' outputs, pair bytes, top_k, weights, places, out, out_bytes, size, shared output (0: none), shared bytes,
# shared gate's input, its bytes, its weight
@jit_kernel
def combine_kernel(args, step, begin, end, thread):
    """A row: out += sum of weight * expert's output, in the order of the choice, + sigmoid(gate) * shared expert's."""
    y, y_bytes, top_k, weights, places = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    out_base, out_bytes, size, shared, shared_bytes = (
        load_i64(args + 40), load_i64(args + 48), load_i64(args + 56), load_i64(args + 64), load_i64(args + 72)
    )
    gate_x, gate_bytes, gate_weight = load_i64(args + 80), load_i64(args + 88), load_i64(args + 96)
    for row in range(begin, end):
        out, gate = out_base + row * out_bytes, spread(ZERO)
        if shared != 0:
            for i in range(0, size, 16):
                gate = multiply_add(load(gate_x + row * gate_bytes + 4 * i), load(gate_weight + 4 * i), gate)
            gate = jit_sigmoid(spread(sum_of(gate)))
        for i in range(0, size, 16):
            total = spread(ZERO)
            for j in range(row * top_k, row * top_k + top_k):
                value = load(y + load_i64(places + 8 * j) * y_bytes + 4 * i)
                total = multiply_add(spread_at(weights + 4 * j), value, total)
            if shared != 0:
                total = multiply_add(gate, load(shared + row * shared_bytes + 4 * i), total)
            store(out + 4 * i, load(out + 4 * i) + total)
