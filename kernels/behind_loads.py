"""Device functions that keep the assembler from putting loads where their values are used, one after the other."""

from __future__ import annotations

import triton
import triton.language as tl

_ASM = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $1, $1; bar.red.popc.u32 $0, 0, p; }")


@triton.jit
def zero_behind_loads(NATIVE: tl.constexpr):
    """0.0, to begin sums with that need the loads above: all these are on their way when it is known.

    No load moves over a barrier, and a sum that begins with a barrier's result cannot begin before it.
    """
    zero = tl.program_id(0) * 0
    if NATIVE:
        zero = tl.inline_asm_elementwise(_ASM, "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1)
    return zero.to(tl.float32, bitcast=True)


@triton.jit
def sum_behind_loads(parts, zero, NUM: tl.constexpr):
    """The sum of a tuple of loaded values, in order, that begins with `zero_behind_loads`."""
    total = parts[0] + zero
    for index in tl.static_range(1, NUM):
        total += parts[index]
    return total
