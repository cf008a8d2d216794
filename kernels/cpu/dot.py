"""16 sums of four products of unsigned and signed bytes, however the CPU does it: what every product rests on.

Knows instruction sets; never weights.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from kernels.cpu.machine import cpu_features
from kernels.cpu.simd import I8, I16, I32, V16I, call, constant

V8I = ir.VectorType(I32, 8)
LOW, HIGH = list(range(8)), list(range(8, 16))


def dot_instruction() -> str | None:
    """"avx512vnni", "avxvnni" or "avx2", the best there is; None: this CPU has none of them."""
    features = cpu_features()
    if "f16c" not in features or "fma" not in features:
        return None
    return next((name for name in ("avx512vnni", "avxvnni", "avx2") if name in features), None)


def dot4(b: Any, total: Any, unsigned: Any, signed: Any, bits: int) -> Any:
    """total[i] + sum over t of unsigned[4 i + t] * signed[4 i + t].

    total, unsigned, signed: <16 x i32>, the latter two as 64 bytes; signed bytes above -128
    bits: the unsigned bytes are below 2^bits
    """
    instruction = dot_instruction()
    if instruction == "avx512vnni":
        kind = ir.VectorType(I8, 64)
        return call(b, "llvm.x86.avx512.vpdpbusd.512", V16I, total, b.bitcast(unsigned, kind), b.bitcast(signed, kind))
    halves = [_dot4_of_half(b, *(_part(b, v, lanes) for v in (total, unsigned, signed)), bits, instruction)
              for lanes in (LOW, HIGH)]
    return b.shuffle_vector(*halves, ir.Constant(V16I, list(range(16))))


def _part(b: Any, vector: Any, lanes: list[int]) -> Any:
    return b.shuffle_vector(vector, ir.Constant(V16I, ir.Undefined), ir.Constant(V8I, lanes))


def _dot4_of_half(b: Any, total: Any, unsigned: Any, signed: Any, bits: int, instruction: str | None) -> Any:
    kind = ir.VectorType(I8, 32)
    signed = b.bitcast(signed, kind)
    if instruction == "avxvnni":
        return call(b, "llvm.x86.avx512.vpdpbusd.256", V8I, total, b.bitcast(unsigned, kind), signed)
    # Pairs of products are added with saturation at 16 bits: bytes of 8 bits go in two pieces that cannot reach it.
    masks = (127, 128) if bits == 8 else (255,)
    words = ir.VectorType(I16, 16)
    for mask in masks:
        piece = b.bitcast(unsigned, kind)
        if mask != 255:
            piece = b.and_(piece, constant(kind, mask))
        pairs = call(b, "llvm.x86.avx2.pmadd.ub.sw", words, piece, signed)
        total = b.add(total, call(b, "llvm.x86.avx2.pmadd.wd", V8I, pairs, constant(words, 1)))
    return total
