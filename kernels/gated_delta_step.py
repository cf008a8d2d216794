"""One decode step of a Gated DeltaNet layer between its projections: convolution, SiLU, L2 norms, gates, delta rule,
output gate, quantised output. One program per sequence, value head and quarter of the head's columns holds that part of
the state in registers; the output norm, which spans the head, is left to the consumer as a factor per head.

With S the state before the step, d = exp(g): e = beta (v - d S^T k), o = d S^T q + (k . q) e, S <- d S + k e^T. S is
what memory holds and the few updates beside it (kernels/held_updates.py): both products use the state as loaded and the
updates' few rows, and the step adds one update; the step that finds no room for one writes the state.
Bytes moved: the state read, 4 d_k d_v bytes a head, and written by one step in HELD. Accumulation: f32.
Reference:   kernels/reference/gated_delta_step.py
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import quantize_blocks
from kernels.behind_loads import zero_behind_loads
from kernels.held_updates import COLUMNS, held_marks, with_updates
from kernels.launch import has_dp4a
from kernels.quant_format import QuantActivation

CONV_KERNEL = 4  # taps; the ring holds as many columns, so that the step writes one that no program reads


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """The small tensors of one layer, f32.

    conv:     [4, channels], channels = 2 * num_k_heads * head_dim + num_v_heads * head_dim in the order q | k | v
    a:        [num_v_heads], the negative decay coefficient
    dt_bias:  [num_v_heads]
    norm:     [head_dim]
    """

    conv: Tensor
    a: Tensor
    dt_bias: Tensor
    norm: Tensor
    num_k_heads: int


@triton.jit
def ring_and_taps(ring_ptr, conv_ptr, channel, position, C: tl.constexpr):
    """(the last three inputs of `channel`, any shape, newest first; the four taps that they and the next one meet)."""
    columns = ()
    taps = (tl.load(conv_ptr + 3 * C + channel),)
    for back in tl.static_range(1, 4):
        columns = columns + (tl.load(ring_ptr + (position + 4 - back) % 4 * C + channel),)
        taps = taps + (tl.load(conv_ptr + (3 - back) * C + channel),)
    return columns, taps


@triton.jit
def past(columns, taps, zero):
    """The convolution without its last tap; no sum begins before `zero` is known."""
    total = (columns[0] + zero) * taps[1]
    for back in tl.static_range(2, 4):
        total += columns[back - 1] * taps[back]
    return total


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _gated_delta_step_kernel(
    projected_ptr, stride_m, ring_ptr, state_ptr, held_ptr, slots_ptr, positions_ptr, conv_ptr, a_ptr, dt_ptr,
    norm_ptr, v_ptr, ys_ptr, ym_ptr, ss_ptr, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr,
    BLOCK_V: tl.constexpr, HELD: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1)
    m = tl.program_id(2)
    C: tl.constexpr = (2 * NK + NV) * D
    COLS: tl.constexpr = NV * D
    if PDL:
        gdc_launch_dependents()
    # Everything that the layer's projection does not write is read before the wait for it.
    slot = tl.load(slots_ptr + m).to(tl.int64)
    position = tl.load(positions_ptr + m).to(tl.int32)
    rows = tl.arange(0, D)
    own = tl.arange(0, BLOCK_V)
    columns = part * BLOCK_V + own
    state_ptrs = state_ptr + (slot * NV + head) * D * D + rows[:, None] * D + columns[None, :]
    state = tl.load(state_ptrs)
    ring_ptr += slot * 4 * C
    pair = tl.arange(0, 2)[:, None]
    qk_channel = (pair * NK + head % NK) * D + rows[None, :]  # one tile: the compiler would repeat loads of two vectors
    v_channel = (2 * NK + head) * D + columns
    qk_ring, qk_taps = ring_and_taps(ring_ptr, conv_ptr, qk_channel, position, C)
    v_ring, v_taps = ring_and_taps(ring_ptr, conv_ptr, v_channel, position, C)
    a = tl.load(a_ptr + head)
    dt = tl.load(dt_ptr + head)
    norm = tl.load(norm_ptr + columns)
    zero = zero_behind_loads(NATIVE)
    qk_past = past(qk_ring, qk_taps, zero)
    v_past = past(v_ring, v_taps, zero)
    i = tl.arange(0, HELD)
    keys_ptr = held_ptr + (slot * (NK + NV) + head % NK) * HELD * D
    own_ptr = held_ptr + (slot * (NK + NV) + NK + head) * HELD * D + part * BLOCK_V
    count, logs, last = held_marks(own_ptr, D, HELD)
    keys = tl.load(keys_ptr + i[:, None] * D + rows[None, :])
    errors = tl.load(own_ptr + i[:, None] * D + own[None, :])
    if PDL:
        gdc_wait()
    projected_ptr += m * stride_m
    qk_new = tl.load(projected_ptr + qk_channel)
    v_new = tl.load(projected_ptr + v_channel)
    z = tl.load(projected_ptr + C + head * D + columns)
    alpha = tl.load(projected_ptr + C + COLS + head)
    beta = tl.load(projected_ptr + C + COLS + NV + head)
    zero = zero_behind_loads(NATIVE)
    qk_new += zero
    v_new += zero
    z += zero
    alpha += zero + dt
    beta = 1.0 / (1.0 + tl.exp(-beta - zero))
    now_ptr = ring_ptr + position % 4 * C
    tl.store(now_ptr + qk_channel, qk_new, mask=(qk_channel >= 0) & (part == 0) & (head < NK))
    tl.store(now_ptr + v_channel, v_new)
    softplus = tl.where(alpha > 20.0, alpha, tl.log(1.0 + tl.exp(tl.minimum(alpha, 20.0))))
    total = last + a * softplus
    decay = tl.exp(total)
    qk = silu(qk_past + qk_taps[0] * qk_new)
    qk = qk * tl.rsqrt(tl.sum(qk * qk, axis=1) + 1e-6)[:, None]
    q = tl.sum(tl.where(pair == 0, qk, 0.0), axis=0) * (D**-0.5)
    k = tl.sum(tl.where(pair == 1, qk, 0.0), axis=0)
    v = silu(v_past + v_taps[0] * v_new)
    share = tl.where(i < count, tl.exp(total - logs), 0.0)
    errors = tl.where((i < count)[:, None], errors, 0.0)
    # Rows that hold no update may hold anything.
    k_weights = tl.where(i < count, share * tl.sum(keys * k[None, :], axis=1), 0.0)
    q_weights = tl.where(i < count, share * tl.sum(keys * q[None, :], axis=1), 0.0)
    recalled = decay * tl.sum(state * k[:, None], axis=0) + tl.sum(errors * k_weights[:, None], axis=0)
    answered = decay * tl.sum(state * q[:, None], axis=0) + tl.sum(errors * q_weights[:, None], axis=0)
    error = beta * (v - recalled)
    out = answered + tl.sum(k * q, axis=0) * error
    if count > HELD - 2:
        state = with_updates(state, total, count, keys_ptr, own_ptr, rows, own, D, HELD)
        tl.store(state_ptrs, state + k[:, None] * error[None, :])
        tl.store(own_ptr + (HELD - 1) * D + i, tl.zeros((HELD,), tl.float32))
    else:
        tl.store(keys_ptr + count * D + rows, k, mask=(rows >= 0) & (part == 0) & (head < NK))
        tl.store(own_ptr + count * D + own, error)
        tl.store(own_ptr + (HELD - 1) * D + count, total - 1.0)
    BLOCKS: tl.constexpr = BLOCK_V // 16
    block = (head * D + part * BLOCK_V) // 16
    v_ptr += m * 2 * COLS
    ys_ptr += m * (COLS // 16)
    ym_ptr += m * (COLS // 16)
    squares = tl.sum(tl.reshape(out * out, (BLOCKS, 16)), axis=1)
    tl.store(ss_ptr + m * (COLS // 16) + block + tl.arange(0, BLOCKS), squares)
    quantize_blocks(out * norm * silu(z), block, v_ptr, ys_ptr, ym_ptr, COLS, BLOCKS)


def gated_delta_step(
    projected: Tensor,
    weights: DeltaNetWeights,
    conv_ring: Tensor,
    state: Tensor,
    held: Tensor,
    state_slots: Tensor,
    positions: Tensor,
    out: QuantActivation,
    num_warps: int = 1,
    pdl: bool = False,
) -> None:
    """One token of each sequence through a layer's recurrence.

    projected:   [num_seqs, channels + num_v_heads * head_dim + 2 * num_v_heads] f32: q | k | v | z | alpha | beta
    conv_ring:   [num_slots, 4, channels] f32, the input of position p in column p % 4, zeros before the sequence;
                 column positions % 4 of the rows state_slots is written
    state:       [num_slots, num_v_heads, head_dim, head_dim] f32
    held:        [num_slots, num_k_heads + num_v_heads, HELD, head_dim] f32, updates that `state` lacks;
                 rows state_slots of both are changed in place
    state_slots: [num_seqs] int64, distinct; positions: [num_seqs] int64
    out:         [num_seqs, num_v_heads * head_dim] values, scales, sums and square_sums written; the consumer
                 multiplies
                 head h by 1 / sqrt(mean over the head of squares + eps)
    head_dim is a power of two, 16 or more
    """
    num_seqs = projected.shape[0]
    _, num_v_heads, head_dim, _ = state.shape
    options = {"launch_pdl": True} if pdl else {}
    block_v = min(COLUMNS, head_dim)
    _gated_delta_step_kernel[(head_dim // block_v, num_v_heads, num_seqs)](
        projected, projected.stride(0), conv_ring, state, held, state_slots, positions, weights.conv,
        weights.a, weights.dt_bias, weights.norm, out.values, out.scales, out.sums, out.square_sums,
        NK=weights.num_k_heads, NV=num_v_heads, D=head_dim, BLOCK_V=block_v, HELD=held.shape[2],
        NATIVE=has_dp4a(), PDL=pdl, num_warps=num_warps, **options,
    )
