"""Device functions: the experts of a token as a program chooses them for itself, from the router's logits.

Keys are the logits' upper bits with the expert's number below, so one integer maximum finds both; logits that differ by
less than 2^-14 of their size count as equal, and the lower number wins. A slot takes as many rounds as it has betters.
Whoever chooses by these functions chooses the same. Knows no weights.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def expert_keys(logits_ptr, zero, E: tl.constexpr, SPAN: tl.constexpr, EARLY: tl.constexpr = False):
    """Keys of E logits in every warp's lanes, [32, W, ., .] int32; zero: [W]; SPAN * 32 is a power of two, at least E.

    EARLY: for who has not waited for a kernel since they were written: only the L2 cache is sure to have them
    """
    LOW: tl.constexpr = 32 * SPAN - 1
    INNER: tl.constexpr = 4 if SPAN >= 4 else SPAN  # what one thread loads at once
    lane = tl.arange(0, 32)[:, None, None, None] + zero[None, :, None, None]
    expert = lane * SPAN + (tl.arange(0, SPAN // INNER) * INNER)[None, None, :, None]
    expert += tl.arange(0, INNER)[None, None, None, :]
    if EARLY:
        logits = tl.load(logits_ptr + expert, mask=expert < E, other=float("-inf"), cache_modifier=".cg")
    else:
        logits = tl.load(logits_ptr + expert, mask=expert < E, other=float("-inf"))
    bits = logits.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # orders as the floats do
    return (key & ~LOW) | (LOW - expert)


@triton.jit
def next_best(keys, best):
    """The largest key below `best` [W], of every warp."""
    rest = tl.where(keys < best[None, :, None, None], keys, -(1 << 31))
    return tl.max(tl.max(tl.max(rest, axis=3), axis=2), axis=0)


@triton.jit
def expert_of(key, SPAN: tl.constexpr):
    """The number in a key."""
    LOW: tl.constexpr = 32 * SPAN - 1
    return LOW - (key & LOW)


def lane_span(num_experts: int) -> int:
    """SPAN: experts that a lane looks after."""
    return max(1, triton.next_power_of_2(num_experts) // 32)
