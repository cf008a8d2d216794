"""Causal attention over the paged pool, by tiles of keys at absolute positions.

A query's sums run over its keys in one order: tiles of TILE keys, joined within spans of SPAN keys, spans joined in
turn. Neither the other queries of a step nor whether spans were computed apart changes a bit: keys that a query does
not see add exact zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.attention_tile import ELEMENT_BYTES, gather, scores
from kernels.cpu.program import (
    BLOCK_SIZE,
    PARTIALS,
    POSITIONS,
    SCRATCH,
    SCRATCH_BYTES,
    TABLE_BYTES,
    TABLES,
    jit_kernel,
    jit_kernels,
    jit_part,
    specialised,
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
    load_f16,
    load_i32,
    load_i64,
    maximum,
    multiply_add,
    prefetch,
    spread,
    store,
    store_f32,
    store_i64,
    sum_of,
    where_first,
)

TILE, SPAN = 64, 512                   # keys
MAX_QUERIES = 32                       # query vectors of one unit: rows times query heads per kv head
LOWEST = np.float32(-1e30)             # below every score; finite, so that differences are numbers
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0.0)
WEIGHTS_BYTES = (MAX_QUERIES + 3) * TILE * 4
STATE = 128                            # bytes before the sums of a query vector: its maximum, its total, 16 floats each
SCALES_AT, LOCATED = 512, 1024         # of a tile's rows: offsets in bytes, then scales of the keys and of the values
KIND, WIDTH, HAS_SCALES = "", 0, False  # in the functions of a kernel: its pool's
scale: Any = None                       # and there _scale and _attend_tile for it
attend_tile: Any = None


def scratch_bytes(head_dim: int) -> int:
    """What one thread needs."""
    return 2 * LOCATED + WEIGHTS_BYTES + (2 * MAX_QUERIES + 1) * (STATE + 4 * head_dim)


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


@jit_part(Void, *[Int] * 6)
def jit_locate(first, end, table, block_size, row_bytes, found):
    """Offsets of the 64 rows from `first` on; the last before `end` repeated."""
    block, offset, row = first // block_size, first % block_size, 0
    for j in range(TILE):
        if first + j < end:
            if offset == block_size:
                block, offset = block + 1, 0
            row = (load_i32(table + 4 * block) * block_size + offset) * row_bytes
            offset += 1
        store_i64(found + 8 * j, row)


@jit_part(Void, Address, Address, Int, Int)
def jit_fetch(pool, found, num_keys, head_bytes):
    """Start loading the first of a tile's rows."""
    for j in range(num_keys):
        row = load_i64(found + 8 * j)
        for i in range(0, head_bytes, 64):
            prefetch(pool + row + i)


def _scale(scales, row_size, head, found, out):
    """Scales of a head's rows."""
    for j in range(TILE):
        store_f32(out + 4 * j, load_f16(scales + 2 * (load_i64(found + 8 * j) // row_size + head)))


def _attend_tile(query, q_bytes, q_head, group, count, head_dim, k_pool, v_pool, found, weights, states, state_bytes,
          positions, start, num_keys, window, next_k, next_v, following):
    """64 keys from position `start` on for `count` query vectors, which see those up to their own position.

    next_k, next_v, following: of the rows that come next, which get on their way to the cache meanwhile
    """
    for q in range(0, count, 4):
        i1, i2, i3 = min(q + 1, count - 1), min(q + 2, count - 1), min(q + 3, count - 1)
        q0 = query + q // group * q_bytes + q % group * q_head
        q1 = query + i1 // group * q_bytes + i1 % group * q_head
        q2 = query + i2 // group * q_bytes + i2 % group * q_head
        q3 = query + i3 // group * q_bytes + i3 % group * q_head
        w0 = weights + 256 * q
        for j in range(0, num_keys, 4):
            scores(KIND, q0, q1, q2, q3, k_pool, found + 8 * j, found + SCALES_AT + 4 * j, head_dim, w0 + 4 * j)
            if q == 0:
                jit_fetch(next_k, following + 8 * j, 4, head_dim * WIDTH)
        s0, spare = states + q * state_bytes, weights + WEIGHTS_BYTES
        s1 = states + i1 * state_bytes if i1 != q else spare
        s2 = states + i2 * state_bytes if i2 != i1 else spare
        s3 = states + i3 * state_bytes if i3 != i2 else spare
        end0, end1 = load_i64(positions + 8 * (q // group)) + 1, load_i64(positions + 8 * (i1 // group)) + 1
        end2, end3 = load_i64(positions + 8 * (i2 // group)) + 1, load_i64(positions + 8 * (i3 // group)) + 1
        reach = window if window > 0 else start + TILE + end3
        f0 = jit_weigh(w0, s0, end0 - reach - start, end0 - start)
        f1 = jit_weigh(w0 + 256, s1, end1 - reach - start, end1 - start) if i1 != q else f0
        f2 = jit_weigh(w0 + 512, s2, end2 - reach - start, end2 - start) if i2 != i1 else f1
        f3 = jit_weigh(w0 + 768, s3, end3 - reach - start, end3 - start) if i3 != i2 else f2
        for i in range(0, head_dim, 32):
            at = STATE + 4 * i
            gather(KIND, w0, s0 + at, s1 + at, s2 + at, s3 + at, f0, f1, f2, f3, v_pool + i * WIDTH, found,
                   found + SCALES_AT + 4 * TILE, num_keys, next_v + i * WIDTH, following)


def _of_kind(kind):
    names = {"KIND": kind, "WIDTH": ELEMENT_BYTES[kind], "HAS_SCALES": kind == "int8"}
    scale = jit_part(Void, *[Int] * 5)(specialised(_scale, kind, names))
    attend_tile = jit_part(Void, *[Int] * 19)(specialised(_attend_tile, kind, names))
    return {**names, "scale": scale, "attend_tile": attend_tile}


# q, q_bytes, q_head_bytes, out, out_bytes, kv heads, query heads of each, head_dim, keys, values, key scales, value
# scales, window (0: none), word of the work list [first row, rows, sequence, first key, end key, part or -1]
@jit_kernels(_of_kind)
def attend_kernel(args, step, begin, end, thread):
    """An entry of the work list and a kv head: finished outputs, or one span's state as a part to be joined.

    Kinds: of the pool, "f32", "f16", "bf16" or "int8".
    """
    q_base, q_bytes, q_head, out_base, out_bytes = (
        load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24), load_i64(args + 32)
    )
    heads, group, head_dim = load_i64(args + 40), load_i64(args + 48), load_i64(args + 56)
    k_cache, v_cache, k_scale, v_scale = (
        load_i64(args + 64), load_i64(args + 72), load_i64(args + 80), load_i64(args + 88)
    )
    window = load_i64(args + 96)
    found = load_i64(step + 8 * SCRATCH) + thread * load_i64(step + 8 * SCRATCH_BYTES)
    following, weights = found + LOCATED, found + 2 * LOCATED
    state_bytes, head_bytes = STATE + 4 * head_dim, head_dim * WIDTH
    states = weights + WEIGHTS_BYTES + state_bytes
    totals = states + MAX_QUERIES * state_bytes
    block_size = load_i64(step + 8 * BLOCK_SIZE)
    unit = begin
    while unit < end:
        entry, head = load_i64(step + 8 * load_i64(args + 104)) + 48 * (unit // heads), unit % heads
        row, num_rows, first, last = load_i64(entry), load_i64(entry + 8), load_i64(entry + 24), load_i64(entry + 32)
        part = load_i64(entry + 40)
        table = load_i64(step + 8 * TABLES) + load_i64(entry + 16) * load_i64(step + 8 * TABLE_BYTES)
        count = num_rows * group
        some = min(heads - head, end - unit, MAX_QUERIES // count)  # heads at once: rows are read as they lie
        unit += some
        for q in range(some * count):
            jit_clear(totals + q * state_bytes, head_dim)
            jit_clear(states + q * state_bytes, head_dim)
        k_pool, v_pool = k_cache + head * head_bytes, v_cache + head * head_bytes
        query, positions = q_base + row * q_bytes + head * group * q_head, load_i64(step + 8 * POSITIONS) + 8 * row
        begin_tile = first // TILE * TILE
        jit_locate(begin_tile, last, table, block_size, heads * head_bytes, found)
        jit_locate(begin_tile, last, table, block_size, heads * head_bytes, following)
        jit_fetch(k_pool, found, TILE, head_bytes)
        jit_fetch(v_pool, found, TILE, head_bytes)
        for start in range(begin_tile, last, TILE):
            if start + TILE < last:
                jit_locate(start + TILE, last, table, block_size, heads * head_bytes, following)
            for h in range(some):
                is_last, then = h + 1 == some, (h + 1) % some * head_bytes
                if HAS_SCALES:
                    scale(k_scale, head_dim, head + h, found, found + SCALES_AT)
                    scale(v_scale, head_dim, head + h, found, found + SCALES_AT + 4 * TILE)
                attend_tile(query + h * group * q_head, q_bytes, q_head, group, count, head_dim,
                            k_pool + h * head_bytes, v_pool + h * head_bytes, found, weights,
                            states + h * count * state_bytes, state_bytes, positions, start, min(last - start, TILE),
                            window, k_pool + then, v_pool + then, following if is_last else found)
            found, following = following, found
            if (start + TILE) % SPAN == 0 or start + TILE >= last:
                for q in range(some * count):
                    target = totals + q * state_bytes
                    if part >= 0:  # the entry is a single row
                        target = load_i64(step + 8 * PARTIALS) + ((part * heads + head) * group + q) * state_bytes
                        jit_clear(target, head_dim)
                    jit_join(target, states + q * state_bytes, head_dim)
                    jit_clear(states + q * state_bytes, head_dim)
        if part < 0:
            for q in range(some * count):
                h, i = head + q // count, q % count
                out = out_base + (row + i // group) * out_bytes + (h * group + i % group) * head_dim * 4
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
