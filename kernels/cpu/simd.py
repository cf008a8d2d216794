"""Vectors of 16 floats as values in kernels, loads and stores by address, and pieces of LLVM IR for generated code.

Addresses are int64. Everything here compiles to a few instructions; nothing knows what is computed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.values import F32, F64, I32, I64, LANES, V16F, VOID, Intrinsic

I8, I16, F16 = ir.IntType(8), ir.IntType(16), ir.HalfType()
V16I = ir.VectorType(I32, LANES)


# ---- pieces of LLVM IR, shared with the generated kernels


def address(b: Any, base: Any, offset: int, kind: Any) -> Any:
    """Pointer to `kind` at base + offset bytes."""
    return b.inttoptr(b.add(base, ir.Constant(I64, offset)) if offset else base, kind.as_pointer())


def load_from(b: Any, base: Any, offset: int, kind: Any, align: int = 1) -> Any:
    value = b.load(address(b, base, offset, kind))
    value.align = align
    return value


def splat(b: Any, value: Any, lanes: int = LANES) -> Any:
    kind = ir.VectorType(value.type, lanes)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def constant(kind: Any, value: float | int) -> Any:
    """A vector that is `value` in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def call(b: Any, name: str, result: Any, *args: Any) -> Any:
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [arg.type for arg in args]), name=name)
    return b.call(function, args)


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    return call(b, "llvm.fma.v16f32", V16F, x, y, z)


def fetch(b: Any, at: Any) -> None:
    """Start loading the cache line of an address."""
    hints = (ir.Constant(I32, n) for n in (0, 3, 1))  # read, into every cache, data
    call(b, "llvm.prefetch.p0", ir.VoidType(), b.inttoptr(at, I8.as_pointer()), *hints)


def total_of(b: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """All lanes combined in pairs, halves first."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        indices = [ir.Constant(ir.VectorType(I32, lanes), list(range(start, start + lanes))) for start in (0, lanes)]
        parts = [b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), index) for index in indices]
        vector = combine(*parts)
    return b.extract_element(vector, ir.Constant(I32, 0))


def loop(b: Any, count: Any, starts: Sequence[Any], step: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> list[Any]:
    """Values after `count` times values = step(index, values), at least once; step emits no branches."""
    before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    index, values = b.phi(I64), [b.phi(start.type) for start in starts]
    results = list(step(index, values))
    following = b.add(index, ir.Constant(I64, 1))
    for phi, first, value in zip((index, *values), (ir.Constant(I64, 0), *starts), (following, *results)):
        phi.add_incoming(first, before)
        phi.add_incoming(value, body)
    b.cbranch(b.icmp_unsigned("<", following, count), body, after)
    b.position_at_end(after)
    return results


def larger(b: Any, x: Any, y: Any) -> Any:
    """The larger of each lane; NaN in x wins, NaN in y loses."""
    return b.select(b.fcmp_ordered("<", x, y), y, x)


# ---- functions for kernels


def _exp(b: Any, x: Any) -> Any:
    """e^x to 2 units in the last place; 0 below -87.3, NaN stays NaN.

    x = n ln 2 + r: a polynomial in r, times 2^n put together from its exponent bits.
    """
    magic, highest = 12582912.0, 88.0  # 1.5 * 2^23: adding it rounds to an integer in the low bits
    is_tiny = b.fcmp_ordered("<", x, constant(V16F, -87.3))
    x = b.select(b.fcmp_ordered(">", x, constant(V16F, highest)), constant(V16F, highest), x)
    shifted = fma(b, x, constant(V16F, 1.4426950408889634), constant(V16F, magic))
    n = b.fsub(shifted, constant(V16F, magic))
    r = fma(b, n, constant(V16F, -0.693145751953125), x)
    r = fma(b, n, constant(V16F, -1.428606765330187e-06), r)
    p = constant(V16F, 1.0 / 720.0)
    for factor in (1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0):
        p = fma(b, p, r, constant(V16F, factor))
    exponent = b.add(b.shl(b.bitcast(shifted, V16I), constant(V16I, 23)), constant(V16I, 127 << 23))
    return b.select(is_tiny, constant(V16F, 0.0), b.fmul(p, b.bitcast(exponent, V16F)))


def _store(b: Any, at: Any, value: Any, align: int = 4) -> None:
    b.store(value, address(b, at, 0, value.type), align=align)


def _first_lanes(b: Any, count: Any) -> Any:
    lanes = ir.Constant(ir.VectorType(I64, LANES), list(range(LANES)))
    return b.icmp_signed("<", lanes, splat(b, count))


def _bf16_bits(b: Any, values: Any) -> Any:
    """Rounded to nearest, ties to even; NaN stays NaN."""
    bits = b.bitcast(values, V16I)
    odd = b.and_(b.lshr(bits, constant(V16I, 16)), constant(V16I, 1))
    rounded = b.lshr(b.add(bits, b.add(odd, constant(V16I, 0x7FFF))), constant(V16I, 16))
    is_nan = b.fcmp_unordered("uno", values, values)
    return b.trunc(b.select(is_nan, constant(V16I, 0x7FC0), rounded), ir.VectorType(I16, LANES))


def _stack_bytes(b: Any, count: int) -> Any:
    with b.goto_entry_block():
        place = b.alloca(ir.ArrayType(I8, count))
    place.align = 64
    return b.ptrtoint(place, I64)


_V16I8 = ir.VectorType(I8, LANES)
Address = Int = I64
Vector, Float, Double, Void = V16F, F32, F64, VOID
_A, _X, _F = Address, Vector, Float

load = Intrinsic(_X, (_A,), lambda b, at: load_from(b, at, 0, V16F, 4))
store = Intrinsic(VOID, (_A, _X), _store)
store_bf16 = Intrinsic(VOID, (_A, _X), lambda b, at, x: _store(b, at, _bf16_bits(b, x), 2))
store_halves = Intrinsic(VOID, (_A, _X), lambda b, at, x: _store(
    b, at, b.fptrunc(x, ir.VectorType(F16, LANES)), 2))
store_i8 = Intrinsic(VOID, (_A, _X), lambda b, at, x: _store(b, at, b.trunc(
    b.bitcast(b.fadd(x, constant(V16F, 12582912.0)), V16I), _V16I8), 1))  # whole numbers below 2^22
load_f32 = Intrinsic(_F, (_A,), lambda b, at: load_from(b, at, 0, F32, 4))
store_f32 = Intrinsic(VOID, (_A, _F), _store)
load_f16 = Intrinsic(_F, (_A,), lambda b, at: b.fpext(load_from(b, at, 0, F16, 2), F32))
store_f16 = Intrinsic(VOID, (_A, _F), lambda b, at, x: _store(b, at, b.fptrunc(x, F16), 2))
load_i32 = Intrinsic(I64, (_A,), lambda b, at: b.sext(load_from(b, at, 0, I32, 4), I64))
store_i32 = Intrinsic(VOID, (_A, I64), lambda b, at, x: _store(b, at, b.trunc(x, I32)))
load_i64 = Intrinsic(I64, (_A,), lambda b, at: load_from(b, at, 0, I64, 8))
store_i64 = Intrinsic(VOID, (_A, I64), lambda b, at, x: _store(b, at, x, 8))
load_f64 = Intrinsic(F64, (_A,), lambda b, at: load_from(b, at, 0, ir.DoubleType(), 8))
prefetch = Intrinsic(VOID, (_A,), fetch)
spread = Intrinsic(_X, (_F,), splat)                                            # one value in every lane
spread_at = Intrinsic(_X, (_A,), lambda b, at: splat(b, load_from(b, at, 0, F32, 4)))
multiply_add = Intrinsic(_X, (_X, _X, _X), fma)                                 # x * y + z, rounded once
maximum = Intrinsic(_X, (_X, _X), larger)
magnitude = Intrinsic(_X, (_X,), lambda b, x: call(b, "llvm.fabs.v16f32", V16F, x))
nearest = Intrinsic(_X, (_X,), lambda b, x: call(b, "llvm.roundeven.v16f32", V16F, x))
whole_of = Intrinsic(_X, (_X,), lambda b, x: call(b, "llvm.floor.v16f32", V16F, x))
exponential = Intrinsic(_X, (_X,), _exp)
sum_of = Intrinsic(_F, (_X,), lambda b, x: total_of(b, x, b.fadd))
largest_of = Intrinsic(_F, (_X,), lambda b, x: total_of(b, x, lambda y, z: larger(b, y, z)))
where_first = Intrinsic(_X, (I64, _X, _X), lambda b, n, x, y: b.select(_first_lanes(b, n), x, y))
stack_bytes = Intrinsic(I64, (None,), _stack_bytes)                             # address of a constant number of bytes
