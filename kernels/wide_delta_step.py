"""One decode step of a Gated DeltaNet layer between its projections, for 16 sequences and more: `delta_rows` makes what
a head needs once, and here a program of each sequence and value head streams the state, with little beside its two
products. It has the whole head, so it ends the layer: output norm, gate, f16 rows for the output projection.

The recurrence is `gated_delta_step`'s, updates held back included; both keep the same ring, states and held updates.
Bytes moved: the state read, 4 d_k d_v bytes a head, and written by one step in HELD; rows from the L2 cache.
Accumulation: f32.   Reference:   kernels/reference/gated_delta_step.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.delta_rows import ProjectedParts, delta_rows, row_width
from kernels.gated_delta_step import DeltaNetWeights
from kernels.held_updates import COLUMNS, HELD
from kernels.launch import THREE_OF_4_WARPS
from kernels.pack_halves import F16_MAX, packed_place


@triton.jit
def _wide_delta_step_kernel(
    rows_ptr, state_ptr, held_ptr, slots_ptr, y_ptr, eps, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr,
    WARPS: tl.constexpr, WIDTH: tl.constexpr, HELD: tl.constexpr, ROW: tl.constexpr, PDL: tl.constexpr,
):
    """WARPS of WIDTH columns each. A thread has neighbouring rows of four columns, row g * I + i in place [g, w, i, c]
    of a tile (the order of dimensions decides what lies in a thread): it sums most of a product alone and reads q and k
    by fours."""
    head = tl.program_id(0)
    m = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
    G: tl.constexpr = 128 // WIDTH
    I: tl.constexpr = D // G
    g = tl.arange(0, G)
    rows = g[:, None] * I + tl.arange(0, I)[None, :]
    columns = tl.arange(0, WARPS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    # What `delta_rows` does not write is read before the wait for it.
    slot = tl.load(slots_ptr + m).to(tl.int64)
    state_ptrs = state_ptr + (slot * NV + head) * D * D + rows[:, None, :, None] * D + columns[None, :, None, :]
    state = tl.load(state_ptrs)
    held_ptr += slot * (NK + NV) * HELD * D
    keys_ptr = held_ptr + head % NK * HELD * D
    own_ptr = held_ptr + (NK + head) * HELD * D
    is_row = g < HELD - 1
    errors = tl.load(own_ptr + g[:, None, None] * D + columns[None, :, :], mask=is_row[:, None, None], other=0.0)
    if PDL:
        gdc_wait()
    key_ptr = rows_ptr + (m * (NK + NV) + head % NK) * ROW
    value_ptr = rows_ptr + (m * (NK + NV) + NK + head) * ROW
    q = tl.load(key_ptr + rows)
    k = tl.load(key_ptr + D + rows)
    v = tl.load(value_ptr + columns)
    gate = tl.load(value_ptr + D + columns)
    k_weights = tl.load(key_ptr + 2 * D + g, mask=is_row, other=0.0)
    q_weights = tl.load(key_ptr + 2 * D + HELD + g, mask=is_row, other=0.0)
    shares = tl.load(value_ptr + 2 * D + g, mask=is_row, other=0.0)
    k_q = tl.load(key_ptr + 2 * D + HELD - 1)
    decay = tl.load(value_ptr + 2 * D + HELD)
    beta = tl.load(value_ptr + 2 * D + HELD + 1)
    total = tl.load(value_ptr + 2 * D + HELD + 2)
    count = tl.load(value_ptr + 2 * D + HELD + 3).to(tl.int32)
    errors = tl.where((g < count)[:, None, None], errors, 0.0)  # rows that hold no update may hold anything
    k_weights *= shares
    q_weights *= shares
    recalled = decay * tl.sum(state * k[:, None, :, None], axis=2) + errors * k_weights[:, None, None]
    answered = decay * tl.sum(state * q[:, None, :, None], axis=2) + errors * q_weights[:, None, None]
    error = beta * (v - tl.sum(recalled, axis=0))
    out = tl.sum(answered, axis=0) + k_q * error
    squares = tl.sum(tl.sum(out * out, axis=1), axis=0)
    y = out * gate * tl.rsqrt(squares / D + eps)
    y = tl.minimum(tl.maximum(y, -F16_MAX), F16_MAX).to(tl.float16)
    tl.store(y_ptr + m * NV * D + packed_place(head * D + columns), y)
    marks_ptr = own_ptr + (HELD - 1) * D + tl.arange(0, WARPS) * WIDTH
    if count > HELD - 2:
        state *= decay
        index = 0
        while index <= count:  # the step's own update last; its key, loaded anew, takes no registers until then
            is_old = index < count
            key = tl.load(tl.where(is_old, keys_ptr + index * D, key_ptr + D) + rows)
            share = tl.load(value_ptr + 2 * D + index, mask=is_old, other=0.0)
            old = tl.load(own_ptr + index * D + columns, mask=(columns >= 0) & is_old, other=0.0)
            state += key[:, None, :, None] * tl.where(is_old, share * old, error)[None, :, None, :]
            index += 1
        tl.store(state_ptrs, state)
        tl.store(marks_ptr[:, None] + tl.arange(0, HELD)[None, :], tl.zeros((WARPS, HELD), tl.float32))
    else:
        tl.store(own_ptr + count * D + columns, error)
        tl.store(marks_ptr + count, tl.zeros((WARPS,), tl.float32) + (total - 1.0))


def wide_delta_step(
    projected: ProjectedParts, weights: DeltaNetWeights, conv_ring: Tensor, state: Tensor, held: Tensor,
    state_slots: Tensor, positions: Tensor, rows: Tensor, out: Tensor, eps: float, pdl: bool = False,
) -> None:
    """One token of each sequence through a layer's recurrence, as `gated_delta_step`, and its output norm and gate.

    projected:   of q | k | v, z, alpha and beta, parts still to be added up
    conv_ring, state, held, state_slots, positions: as there, changed in the same places
    rows:        [num_seqs, num_k_heads + num_v_heads, row_width(head_dim)] f32, contiguous, overwritten
    out:         [num_seqs, num_v_heads * head_dim] f16, a multiple of 128, written in the order of `pack_halves`; what
                 exceeds f16 is the largest that does not
    head_dim is a power of two, 16 or more; registers are those of 128
    """
    num_seqs = state_slots.shape[0]
    _, num_v_heads, head_dim, _ = state.shape
    width = min(COLUMNS, head_dim)
    assert out.shape[1] % 128 == 0
    delta_rows(projected, weights, conv_ring, held, state_slots, positions, rows, pdl)
    _wide_delta_step_kernel[(num_v_heads, num_seqs)](
        rows, state, held, state_slots, out, eps, NK=weights.num_k_heads, NV=num_v_heads, D=head_dim,
        WARPS=head_dim // width, WIDTH=width, HELD=HELD, ROW=row_width(head_dim), PDL=pdl, num_warps=head_dim // width,
        maxnreg=THREE_OF_4_WARPS, **({"launch_pdl": True} if pdl else {}),
    )
