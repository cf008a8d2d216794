"""Updates of delta-net states that are held back: a state is read by every step and written by one in HELD.

With S the state in memory and updates i (a key k_i, an error e_i, the logarithm G_i of all decays from S up to i), the
state now is exp(G) S + sum over i of exp(G - G_i) k_i e_i^T, where G is that of the last update, 0 where none is held.

A slot holds [num_k_heads + num_v_heads, HELD, head_dim] f32: row i of a key head is k_i, row i of a value head e_i. The
last row of a value head holds marks, G_i - 1 in the i-th of each COLUMNS columns: 0 where no update is held, so that
zeros hold none. Every COLUMNS columns of a head have marks of their own, so that a program reads none that another
one writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

HELD = 4  # rows; one update less is held
COLUMNS = 32  # of a head per program, in `wide_delta_step` per warp


@triton.jit
def held_marks(own_ptr, D: tl.constexpr, HELD: tl.constexpr):
    """(number of updates, logarithms of their decays [HELD], the last one's), of the columns that `own_ptr`, a row of
    a value head, begins with."""
    i = tl.arange(0, HELD)
    marks = tl.load(own_ptr + (HELD - 1) * D + i)
    is_held = (marks < 0.0) & (i < HELD - 1)
    logs = tl.where(is_held, marks + 1.0, 0.0)
    return tl.sum(is_held.to(tl.int32)), logs, tl.min(logs)


@triton.jit
def with_updates(state, total, count, keys_ptr, own_ptr, rows, columns, D: tl.constexpr, HELD: tl.constexpr):
    """A tile [rows, columns] of a state, decayed by exp(total) since it was written, updates added.

    keys_ptr: the key head; columns: from `own_ptr` on
    """
    state *= tl.exp(total)
    i = 0
    while i < count:
        key = tl.load(keys_ptr + i * D + rows, mask=rows < D, other=0.0)
        error = tl.load(own_ptr + i * D + columns, mask=columns < D, other=0.0)
        mark = tl.load(own_ptr + (HELD - 1) * D + i)
        state += key[:, None] * (tl.exp(total - 1.0 - mark) * error)[None, :]
        i += 1
    return state
