"""Causal attention over the paged pool, by tiles of keys at absolute positions.

A query's sums run over its keys in one order: tiles of TILE keys, joined within spans of SPAN keys, spans joined in
turn. Neither the other queries of a step nor whether spans were computed apart changes a bit: keys that a query does
not see add exact zeros.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.program import (
    BLOCK_SIZE,
    PARTIALS,
    POSITIONS,
    SCRATCH,
    SCRATCH_BYTES,
    TABLE_BYTES,
    TABLES,
    jit_kernel,
    jit_part,
)
from kernels.cpu.rows import jit_quantize, jit_sigmoid
from kernels.cpu.simd import (
    Address,
    Int,
    Vector,
    Void,
    exponential,
    largest_of,
    load,
    load_bf16,
    load_f16,
    load_i8,
    load_i32,
    load_i64,
    maximum,
    multiply_add,
    prefetch,
    spread,
    spread_at,
    store,
    store_i64,
    sum_of,
    transpose,
    where_first,
)

TILE, SPAN = 64, 512                   # keys
MAX_QUERIES = 32                       # query vectors of one unit: rows times query heads per kv head
LOWEST = np.float32(-1e30)             # below every score; finite, so that differences are numbers
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0.0)
KV_F32, KV_BF16, KV_INT8 = 0, 1, 2
STATE = 128                            # bytes before the sums of a query vector: its maximum, its total, 16 floats each


def scratch_bytes(head_dim: int) -> int:
    """What one thread needs."""
    state = MAX_QUERIES * (STATE + 4 * head_dim)
    return 3 * 8 * TILE + 4 * TILE * head_dim * 4 + (MAX_QUERIES + 4) * TILE * 4 + 2 * state + 4096


@jit_part(Void, Address, Address, Int, Int, Int, Address, Int, Int, Int, Int, Int, Address, Address)
def jit_locate(cache, scale, kind, first, end, table, block_size, row_bytes, heads, head, head_dim, addresses, values):
    """Addresses of the 64 rows from `first` on, on their way to the cache; floats, copied if need be.

    Behind `end` the last row is repeated.
    """
    cache += head * (row_bytes // heads)
    block, offset, row, count = first // block_size, first % block_size, 0, end - first
    for j in range(TILE):
        if j < count:
            if offset == block_size:
                block, offset = block + 1, 0
            row = load_i32(table + 4 * block) * block_size + offset
            offset += 1
        at = cache + row * row_bytes
        for i in range(0, row_bytes // heads, 64):
            prefetch(at + i)
        if kind == KV_F32:
            store_i64(addresses + 8 * j, at)
            continue
        out = values + j * head_dim * 4
        store_i64(addresses + 8 * j, out)
        if kind == KV_BF16:
            for i in range(0, head_dim, 16):
                store(out + 4 * i, load_bf16(at + 2 * i))
        else:
            factor = spread(load_f16(scale + 2 * (row * heads + head)))
            for i in range(0, head_dim, 16):
                store(out + 4 * i, load_i8(at + i) * factor)


@jit_part(Void, Address, Address, Address, Address, Address, Int, Int, Address)
def jit_scores(q0, q1, q2, q3, keys, groups, head_dim, out):
    """Products of four queries and up to 64 keys; keys: [groups][head_dim][16], out: [4][64]."""
    for group in range(groups):
        k = keys + group * head_dim * 64
        a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = spread(ZERO)
        for i in range(0, head_dim, 2):
            even, odd = load(k + 64 * i), load(k + 64 * i + 64)
            a0 = multiply_add(spread_at(q0 + 4 * i), even, a0)
            b0 = multiply_add(spread_at(q0 + 4 * i + 4), odd, b0)
            a1 = multiply_add(spread_at(q1 + 4 * i), even, a1)
            b1 = multiply_add(spread_at(q1 + 4 * i + 4), odd, b1)
            a2 = multiply_add(spread_at(q2 + 4 * i), even, a2)
            b2 = multiply_add(spread_at(q2 + 4 * i + 4), odd, b2)
            a3 = multiply_add(spread_at(q3 + 4 * i), even, a3)
            b3 = multiply_add(spread_at(q3 + 4 * i + 4), odd, b3)
        store(out + 64 * group, a0 + b0)
        store(out + 256 + 64 * group, a1 + b1)
        store(out + 512 + 64 * group, a2 + b2)
        store(out + 768 + 64 * group, a3 + b3)


@jit_part(Vector, Address, Address, Int, Int)
def jit_weigh(scores, state, low, high):
    """Turn 64 scores of a query into weights, of which those from `low` to `high` count; rescale what it has so far.

    returns the factor by which its sums have to be multiplied, in every lane
    """
    peak = spread(MINUS_INFINITY)
    for g in range(4):
        s = where_first(high - 16 * g, load(scores + 64 * g), spread(MINUS_INFINITY))
        if low > 0:
            s = where_first(low - 16 * g, spread(MINUS_INFINITY), s)
        store(scores + 64 * g, s)
        peak = maximum(peak, s)
    old = load(state)
    new = maximum(spread(largest_of(peak)), old)
    total = spread(ZERO)
    for g in range(4):
        weight = exponential(load(scores + 64 * g) - new)
        store(scores + 64 * g, weight)
        total = total + weight
    factor = exponential(old - new)
    store(state, new)
    store(state + 64, multiply_add(load(state + 64), factor, total))
    return factor


@jit_part(Void, *[Address] * 8, *[Vector] * 4, Address, Int, Int)
def jit_gather(w0, w1, w2, w3, s0, s1, s2, s3, f0, f1, f2, f3, rows, count, head_dim):
    """Add the weighted values of a tile to the sums of four queries; count: of keys, rounded up to even."""
    for i in range(0, 4 * head_dim, 128):
        at, zero = STATE + i, spread(ZERO)
        a0, a1, a2, a3 = load(s0 + at) * f0, load(s1 + at) * f1, load(s2 + at) * f2, load(s3 + at) * f3
        at += 64
        b0, b1, b2, b3 = load(s0 + at) * f0, load(s1 + at) * f1, load(s2 + at) * f2, load(s3 + at) * f3
        c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
        for j in range(0, 4 * count, 8):
            row = load_i64(rows + 2 * j) + i
            u, v = load(row), load(row + 64)
            p0, p1, p2, p3 = spread_at(w0 + j), spread_at(w1 + j), spread_at(w2 + j), spread_at(w3 + j)
            a0, b0 = multiply_add(p0, u, a0), multiply_add(p0, v, b0)
            a1, b1 = multiply_add(p1, u, a1), multiply_add(p1, v, b1)
            a2, b2 = multiply_add(p2, u, a2), multiply_add(p2, v, b2)
            a3, b3 = multiply_add(p3, u, a3), multiply_add(p3, v, b3)
            row = load_i64(rows + 2 * j + 8) + i
            u, v = load(row), load(row + 64)
            p0, p1, p2, p3 = spread_at(w0 + j + 4), spread_at(w1 + j + 4), spread_at(w2 + j + 4), spread_at(w3 + j + 4)
            c0, d0 = multiply_add(p0, u, c0), multiply_add(p0, v, d0)
            c1, d1 = multiply_add(p1, u, c1), multiply_add(p1, v, d1)
            c2, d2 = multiply_add(p2, u, c2), multiply_add(p2, v, d2)
            c3, d3 = multiply_add(p3, u, c3), multiply_add(p3, v, d3)
        store(s0 + at, b0 + d0)
        store(s1 + at, b1 + d1)
        store(s2 + at, b2 + d2)
        store(s3 + at, b3 + d3)
        at -= 64
        store(s0 + at, a0 + c0)
        store(s1 + at, a1 + c1)
        store(s2 + at, a2 + c2)
        store(s3 + at, a3 + c3)


@jit_part(Void, Address, Int)
def jit_clear(state, head_dim):
    store(state, spread(LOWEST))
    for i in range(0, head_dim + 16, 16):
        store(state + 64 + 4 * i, spread(ZERO))


@jit_part(Void, Address, Address, Int)
def jit_join(total, part, head_dim):
    """Add a span's maximum, total and sums to those of the spans before it."""
    new = maximum(load(total), load(part))
    factor, part_factor = exponential(load(total) - new), exponential(load(part) - new)
    store(total, new)
    for i in range(0, head_dim + 16, 16):
        at = 64 + 4 * i
        store(total + at, multiply_add(load(part + at), part_factor, load(total + at) * factor))


@jit_part(Void, Address, Address, Int)
def jit_finish(state, out, head_dim):
    inverse = spread(np.float32(1.0) / sum_of(load(state + 64)))
    for i in range(0, head_dim, 16):
        store(out + 4 * i, load(state + STATE + 4 * i) * inverse)


@jit_part(Void, *[Int] * 15)
def jit_tile(query, q_bytes, q_head, group, count, head_dim, keys, v_rows, scores, states, state_bytes, positions,
             start, num_keys, window):
    """64 keys from position `start` on for `count` query vectors, which see those up to their own position."""
    for q in range(0, count, 4):
        i1, i2, i3 = min(q + 1, count - 1), min(q + 2, count - 1), min(q + 3, count - 1)
        q0 = query + q // group * q_bytes + q % group * q_head
        q1 = query + i1 // group * q_bytes + i1 % group * q_head
        q2 = query + i2 // group * q_bytes + i2 % group * q_head
        q3 = query + i3 // group * q_bytes + i3 % group * q_head
        jit_scores(q0, q1, q2, q3, keys, (num_keys + 15) // 16, head_dim, scores + 256 * q)
    for q in range(0, count, 4):
        i1, i2, i3 = min(q + 1, count - 1), min(q + 2, count - 1), min(q + 3, count - 1)
        w0, w1, w2, w3 = scores + 256 * q, scores + 256 * i1, scores + 256 * i2, scores + 256 * i3
        s0, s1, s2, s3 = (
            states + q * state_bytes, states + i1 * state_bytes, states + i2 * state_bytes, states + i3 * state_bytes
        )
        end0, end1 = load_i64(positions + 8 * (q // group)) + 1, load_i64(positions + 8 * (i1 // group)) + 1
        end2, end3 = load_i64(positions + 8 * (i2 // group)) + 1, load_i64(positions + 8 * (i3 // group)) + 1
        reach = window if window > 0 else start + TILE + end3
        f0 = jit_weigh(w0, s0, end0 - reach - start, end0 - start)
        f1 = jit_weigh(w1, s1, end1 - reach - start, end1 - start) if i1 != q else f0
        f2 = jit_weigh(w2, s2, end2 - reach - start, end2 - start) if i2 != i1 else f1
        f3 = jit_weigh(w3, s3, end3 - reach - start, end3 - start) if i3 != i2 else f2
        jit_gather(w0, w1, w2, w3, s0, s1, s2, s3, f0, f1, f2, f3, v_rows, (num_keys + 1) // 2 * 2, head_dim)


# q, q_bytes, q_head_bytes, out, out_bytes, kv heads, query heads of each, head_dim, keys, values, key scales, value
# scales, kind, window (0: none), word of the work list [first row, rows, sequence, first key, end key, part or -1]
@jit_kernel
def attend_kernel(args, step, begin, end, thread):
    """An entry of the work list and a kv head: finished outputs, or one span's state as a part to be joined."""
    q_base, q_bytes, q_head, out_base, out_bytes = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    heads, group, head_dim = load_i64(args + 40), load_i64(args + 48), load_i64(args + 56)
    k_cache, v_cache, kind, window = load_i64(args + 64), load_i64(args + 72), load_i64(args + 96), load_i64(args + 104)
    k_rows = load_i64(step + 8 * SCRATCH) + thread * load_i64(step + 8 * SCRATCH_BYTES)
    v_rows = k_rows + 8 * TILE
    next_rows = v_rows + 8 * TILE
    keys = next_rows + 8 * TILE
    k_floats = keys + TILE * head_dim * 4
    next_floats = k_floats + TILE * head_dim * 4
    v_floats = next_floats + TILE * head_dim * 4
    scores = v_floats + TILE * head_dim * 4
    state_bytes = STATE + 4 * head_dim
    states = scores + (MAX_QUERIES + 4) * TILE * 4
    totals = states + MAX_QUERIES * state_bytes
    block_size = load_i64(step + 8 * BLOCK_SIZE)
    row_bytes = heads * head_dim * (4 if kind == KV_F32 else (2 if kind == KV_BF16 else 1))
    for unit in range(begin, end):
        entry, head = load_i64(step + 8 * load_i64(args + 112)) + 48 * (unit // heads), unit % heads
        row, num_rows, first, last = load_i64(entry), load_i64(entry + 8), load_i64(entry + 24), load_i64(entry + 32)
        part = load_i64(entry + 40)
        table = load_i64(step + 8 * TABLES) + load_i64(entry + 16) * load_i64(step + 8 * TABLE_BYTES)
        count = num_rows * group
        for q in range(count):
            jit_clear(totals + q * state_bytes, head_dim)
            jit_clear(states + q * state_bytes, head_dim)
        jit_locate(k_cache, load_i64(args + 80), kind, first // TILE * TILE, last, table, block_size, row_bytes, heads,
                   head, head_dim, k_rows, k_floats)
        for start in range(first // TILE * TILE, last, TILE):
            if start + TILE < last:
                jit_locate(k_cache, load_i64(args + 80), kind, start + TILE, last, table, block_size, row_bytes, heads,
                           head, head_dim, next_rows, next_floats)
            jit_locate(v_cache, load_i64(args + 88), kind, start, last, table, block_size, row_bytes, heads, head,
                       head_dim, v_rows, v_floats)
            for g in range((min(last - start, TILE) + 15) // 16):
                for i in range(0, head_dim, 16):
                    transpose(k_rows + 128 * g, 4 * i, keys + (g * head_dim + i) * 64)
            k_rows, next_rows = next_rows, k_rows
            k_floats, next_floats = next_floats, k_floats
            query = q_base + row * q_bytes + head * group * q_head
            jit_tile(query, q_bytes, q_head, group, count, head_dim, keys, v_rows, scores, states, state_bytes,
                     load_i64(step + 8 * POSITIONS) + 8 * row, start, min(last - start, TILE), window)
            if (start + TILE) % SPAN == 0 or start + TILE >= last:
                for q in range(count):
                    target = totals + q * state_bytes
                    if part >= 0:
                        target = load_i64(step + 8 * PARTIALS) + (part * heads * group + head * group + q) * state_bytes
                        jit_clear(target, head_dim)
                    jit_join(target, states + q * state_bytes, head_dim)
                    jit_clear(states + q * state_bytes, head_dim)
        if part < 0:
            for q in range(count):
                out = out_base + (row + q // group) * out_bytes + (head * group + q % group) * head_dim * 4
                jit_finish(totals + q * state_bytes, out, head_dim)


# out, out_bytes, query heads, head_dim, records (0: none), record_bytes, gate (0: none), gate_bytes, gate_head_bytes,
# word of the parts [first part, number of parts] of each row
@jit_kernel
def finish_kernel(args, step, begin, end, thread):
    """A row: join the parts of its spans, apply the gate, make the records of the output projection."""
    out_base, out_bytes, heads, head_dim = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
    records, record_bytes, gate, gate_bytes, gate_head = (
        load_i64(args + 32), load_i64(args + 40), load_i64(args + 48), load_i64(args + 56), load_i64(args + 64)
    )
    parts, partials = load_i64(step + 8 * load_i64(args + 72)), load_i64(step + 8 * PARTIALS)
    state_bytes = STATE + 4 * head_dim
    total = load_i64(step + 8 * SCRATCH) + thread * load_i64(step + 8 * SCRATCH_BYTES)
    for row in range(begin, end):
        first, count = load_i64(parts + 16 * row), load_i64(parts + 16 * row + 8)
        for head in range(heads):
            out = out_base + row * out_bytes + head * head_dim * 4
            if count > 0:
                jit_clear(total, head_dim)
                for part in range(first, first + count):
                    jit_join(total, partials + (part * heads + head) * state_bytes, head_dim)
                jit_finish(total, out, head_dim)
            if gate != 0:
                g = gate + row * gate_bytes + head * gate_head
                for i in range(0, head_dim, 16):
                    store(out + 4 * i, load(out + 4 * i) * jit_sigmoid(load(g + 4 * i)))
        if records != 0:
            at = out_base + row * out_bytes
            for i in range(0, heads * head_dim, 32):
                jit_quantize(load(at + 4 * i), load(at + 4 * i + 64), records + row * record_bytes + 3 * i)
