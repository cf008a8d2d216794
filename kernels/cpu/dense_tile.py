"""Generates the inner loop of products by matrices of floats: 16 output columns of 1 to 8 rows at once.

Panels are [num_columns, 16 rows] of f32, f16 or bf16. As in quant_tile.py a row's bits depend on nothing but the row.
"""

from __future__ import annotations

from typing import Any, Literal

from llvmlite import ir

from kernels.cpu.simd import F16, F32, I16, I32, I64, LANES, V16F, V16I, address, constant, fma, load_from, splat

DenseType = Literal["f32", "f16", "bf16"]
ELEMENT_BYTES: dict[DenseType, int] = {"f32": 4, "f16": 2, "bf16": 2}


def emit_dense_tile(b: Any, kind: DenseType, num_rows: int, panel: Any, x: Any, x_stride: Any, out: Any,
                    out_stride: Any, init: Any, init_stride: Any, num_columns: Any) -> None:
    """As quant_tile.QuantTile.emit; x: rows of f32."""
    rows = [ir.Constant(I64, r) for r in range(num_rows)]
    offsets = [b.mul(x_stride, r) for r in rows]
    starts = [load_from(b, b.add(init, b.mul(init_stride, r)), 0, V16F, 4) for r in rows]
    before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    index, at, column = b.phi(I64), b.phi(I64), b.phi(I64)
    sums = [b.phi(V16F) for _ in rows]
    weights = _weights(b, kind, at)
    results = [
        fma(b, weights, splat(b, load_from(b, b.add(column, offset), 0, F32, 4)), total)
        for offset, total in zip(offsets, sums)
    ]
    following = b.add(index, ir.Constant(I64, 1))
    ends = (following, b.add(at, ir.Constant(I64, LANES * ELEMENT_BYTES[kind])), b.add(column, ir.Constant(I64, 4)))
    for phi, first, value in zip(
        (index, at, column, *sums), (ir.Constant(I64, 0), panel, x, *starts), (*ends, *results)
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(value, body)
    b.cbranch(b.icmp_unsigned("<", following, num_columns), body, after)
    b.position_at_end(after)
    for r, total in zip(rows, results):
        b.store(total, address(b, b.add(out, b.mul(out_stride, r)), 0, V16F), align=4)


def element(b: Any, kind: DenseType, at: Any, offset: int) -> Any:
    """One of a panel's floats, as f32."""
    if kind == "f32":
        return load_from(b, at, offset, F32, 4)
    if kind == "f16":
        return b.fpext(load_from(b, at, offset, F16, 2), F32)
    return b.bitcast(b.shl(b.zext(load_from(b, at, offset, I16, 2), I32), ir.Constant(I32, 16)), F32)


def _weights(b: Any, kind: DenseType, at: Any) -> Any:
    if kind == "f32":
        return load_from(b, at, 0, V16F, 16)
    if kind == "f16":
        return b.fpext(load_from(b, at, 0, ir.VectorType(F16, LANES), 16), V16F)
    bits = b.zext(load_from(b, at, 0, ir.VectorType(I16, LANES), 16), V16I)
    return b.bitcast(b.shl(bits, constant(V16I, 16)), V16F)
