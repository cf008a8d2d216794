"""Generates the inner loops of attention over pool rows as they are stored: products with keys, sums of values.

Four queries at once. A score's bits depend on its query and its key alone: 16 sums over every 16th element, then
halves added to halves. Values are added key after key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.simd import (
    F16,
    F32,
    I8,
    I16,
    I64,
    LANES,
    V16F,
    V16I,
    address,
    constant,
    fetch,
    fma,
    load_from,
    loop,
    splat,
)
from kernels.cpu.values import VOID, Intrinsic

QUERIES = 4
KEYS = 4                      # of one call of `scores`
VECTOR = 4 * LANES            # bytes of 16 floats
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
TILE_PITCH = 256              # bytes from one query's scores to the next one's: 64 keys


def _load_row(b: Any, kind: str, at: Any) -> Any:
    """16 elements as floats; int8 without its scale."""
    if kind == "f32":
        return load_from(b, at, 0, V16F, 4)
    if kind == "f16":
        return b.fpext(load_from(b, at, 0, ir.VectorType(F16, LANES), 2), V16F)
    if kind == "bf16":
        bits = b.zext(load_from(b, at, 0, ir.VectorType(I16, LANES), 2), V16I)
        return b.bitcast(b.shl(bits, constant(V16I, 16)), V16F)
    return b.sitofp(b.sext(load_from(b, at, 0, ir.VectorType(I8, LANES), 1), V16I), V16F)


def _sums(b: Any, vectors: Sequence[Any]) -> Any:
    """Lane i: the sum of the lanes of vector i, of 16."""
    width = LANES // 2
    while width:
        lanes = [2 * width * (i // (2 * width)) + i % width + (LANES if i // width % 2 else 0) for i in range(LANES)]
        indices = [ir.Constant(V16I, [lane + start for lane in lanes]) for start in (0, width)]
        half = len(vectors) // 2
        vectors = [
            b.fadd(*(b.shuffle_vector(x, y, index) for index in indices))
            for x, y in zip(vectors[:half], vectors[half:])
        ]
        width //= 2
    return vectors[0]


def emit_scores(
    b: Any, kind: str, queries: Sequence[Any], pool: Any, rows: Any, scales: Any, head_dim: Any, out: Any
) -> None:
    """Products of four queries and four keys.

    rows, scales: addresses of the keys' offsets behind `pool`, and of their scales
    out:          [4 queries at TILE_PITCH][4 keys] f32
    """
    keys = [b.add(pool, load_from(b, rows, 8 * k, I64, 8)) for k in range(KEYS)]
    count = b.udiv(head_dim, ir.Constant(I64, LANES))

    def body(index: Any, sums: Sequence[Any]) -> list[Any]:
        q_at, k_at = (b.mul(index, ir.Constant(I64, LANES * size)) for size in (4, ELEMENT_BYTES[kind]))
        k = [_load_row(b, kind, b.add(key, k_at)) for key in keys]
        q = [load_from(b, b.add(query, q_at), 0, V16F, 4) for query in queries]
        return [fma(b, q[i // KEYS], k[i % KEYS], total) for i, total in enumerate(sums)]

    found = _sums(b, loop(b, count, [constant(V16F, 0.0)] * (QUERIES * KEYS), body))
    four = ir.VectorType(F32, KEYS)
    if kind == "int8":
        repeated = ir.Constant(V16I, [i % KEYS for i in range(LANES)])
        factors = load_from(b, scales, 0, four, 4)
        found = b.fmul(found, b.shuffle_vector(factors, ir.Constant(four, ir.Undefined), repeated))
    for q in range(QUERIES):
        index = ir.Constant(ir.VectorType(ir.IntType(32), KEYS), list(range(KEYS * q, KEYS * q + KEYS)))
        part = b.shuffle_vector(found, ir.Constant(V16F, ir.Undefined), index)
        b.store(part, address(b, out, TILE_PITCH * q, four), align=4)


def emit_gather(
    b: Any, kind: str, weights: Any, sums: Sequence[Any], factors: Sequence[Any], pool: Any, rows: Any, scales: Any,
    count: Any, next_pool: Any, next_rows: Any,
) -> None:
    """32 elements of the sums of four queries: times `factors`, plus the weighted values of `count` rows.

    weights: [4 queries at TILE_PITCH] f32; sums: addresses of the 32 floats; rows: as emit_scores
    """
    starts = [b.fmul(load_from(b, at, VECTOR * part, V16F, 4), f) for at, f in zip(sums, factors) for part in (0, 1)]

    def body(index: Any, totals: Sequence[Any]) -> list[Any]:
        at = b.shl(index, ir.Constant(I64, 3))
        row = b.add(pool, load_from(b, b.add(rows, at), 0, I64, 8))
        following = b.add(next_pool, load_from(b, b.add(next_rows, at), 0, I64, 8))
        for start in range(0, 2 * LANES * ELEMENT_BYTES[kind], 64):
            fetch(b, b.add(following, ir.Constant(I64, start)))
        values = [
            _load_row(b, kind, b.add(row, ir.Constant(I64, part * LANES * ELEMENT_BYTES[kind]))) for part in (0, 1)
        ]
        at = b.shl(index, ir.Constant(I64, 2))
        weight = [load_from(b, b.add(weights, at), TILE_PITCH * q, F32, 4) for q in range(QUERIES)]
        if kind == "int8":
            scale = load_from(b, b.add(scales, at), 0, F32, 4)
            weight = [b.fmul(w, scale) for w in weight]
        spread = [splat(b, w) for w in weight]
        return [fma(b, spread[i // 2], values[i % 2], total) for i, total in enumerate(totals)]

    for i, total in enumerate(loop(b, count, starts, body)):
        b.store(total, address(b, sums[i // 2], VECTOR * (i % 2), V16F), align=4)


def _emit_scores(b: Any, kind: str, q0: Any, q1: Any, q2: Any, q3: Any, *rest: Any) -> None:
    emit_scores(b, kind, (q0, q1, q2, q3), *rest)


def _emit_gather(b: Any, kind: str, weights: Any, *rest: Any) -> None:
    emit_gather(b, kind, weights, rest[:4], rest[4:8], *rest[8:])


# For a kind that is a constant: scores(kind, 4 queries, pool, rows, scales, head_dim, out);
# gather(kind, weights, 4 sums, 4 factors, pool, rows, scales, count, next_pool, next_rows)
scores = Intrinsic(VOID, (None, *[I64] * 9), _emit_scores)
gather = Intrinsic(VOID, (None, *[I64] * 5, *[V16F] * 4, *[I64] * 6), _emit_gather)
