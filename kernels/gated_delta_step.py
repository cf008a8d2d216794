"""One decode step of a Gated DeltaNet layer between its projections: convolution, SiLU, L2 norms, gates, delta rule,
output gate, quantised output. One program per sequence, value head and quarter of the head's columns holds that part of
the state in registers; the output norm, which spans the head, is left to the consumer as a factor per head.

With S the state before the step, d = exp(g): e = beta (v - d S^T k), o = d S^T q + (k . q) e, S <- d S + k e^T; both
products use the state as loaded, so it is read once and reduced once.
Bytes moved: the state read and written, 8 d_k d_v bytes a head; the rest is small. Accumulation: f32.
Reference:   kernels/reference/gated_delta_step.py
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.activation import quantize_blocks
from kernels.quant_format import QuantActivation

CONV_KERNEL = 4  # taps; the ring holds as many columns, so that the step writes one that no program reads


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """The small tensors of one layer, f32.

    conv:     [channels, 4], channels = 2 * num_k_heads * head_dim + num_v_heads * head_dim in the order q | k | v
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
def _past(ring_ptr, conv_ptr, channel, position, C: tl.constexpr):
    """(the convolution without its last tap, the last tap's weight) of `channel`, any shape."""
    total = tl.zeros(channel.shape, tl.float32)
    for back in tl.static_range(1, 4):
        column = (position + 4 - back) % 4
        total += tl.load(ring_ptr + column * C + channel) * tl.load(conv_ptr + channel * 4 + 3 - back)
    return total, tl.load(conv_ptr + channel * 4 + 3)


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _gated_delta_step_kernel(
    projected_ptr, stride_m, ring_ptr, state_ptr, slots_ptr, positions_ptr, conv_ptr, a_ptr, dt_ptr, norm_ptr,
    v_ptr, ys_ptr, ym_ptr, ss_ptr, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr, BLOCK_V: tl.constexpr,
    PDL: tl.constexpr,
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
    columns = part * BLOCK_V + tl.arange(0, BLOCK_V)
    state_ptrs = state_ptr + (slot * NV + head) * D * D + rows[:, None] * D + columns[None, :]
    state = tl.load(state_ptrs)
    ring_ptr += slot * 4 * C
    pair = tl.arange(0, 2)[:, None]
    qk_channel = (pair * NK + head % NK) * D + rows[None, :]  # one tile: the compiler would repeat loads of two vectors
    v_channel = (2 * NK + head) * D + columns
    qk_past, qk_tap = _past(ring_ptr, conv_ptr, qk_channel, position, C)
    v_past, v_tap = _past(ring_ptr, conv_ptr, v_channel, position, C)
    a = tl.load(a_ptr + head)
    dt = tl.load(dt_ptr + head)
    norm = tl.load(norm_ptr + columns)
    if PDL:
        gdc_wait()
    projected_ptr += m * stride_m
    qk_new = tl.load(projected_ptr + qk_channel)
    v_new = tl.load(projected_ptr + v_channel)
    z = tl.load(projected_ptr + C + head * D + columns)
    alpha = tl.load(projected_ptr + C + COLS + head) + dt
    beta = 1.0 / (1.0 + tl.exp(-tl.load(projected_ptr + C + COLS + NV + head)))
    now_ptr = ring_ptr + position % 4 * C
    tl.store(now_ptr + qk_channel, qk_new, mask=(qk_channel >= 0) & (part == 0) & (head < NK))
    tl.store(now_ptr + v_channel, v_new)
    softplus = tl.where(alpha > 20.0, alpha, tl.log(1.0 + tl.exp(tl.minimum(alpha, 20.0))))
    decay = tl.exp(a * softplus)
    qk = _silu(qk_past + qk_tap * qk_new)
    qk = qk * tl.rsqrt(tl.sum(qk * qk, axis=1) + 1e-6)[:, None]
    q = tl.sum(tl.where(pair == 0, qk, 0.0), axis=0) * (D**-0.5)
    k = tl.sum(tl.where(pair == 1, qk, 0.0), axis=0)
    v = _silu(v_past + v_tap * v_new)
    recalled = tl.sum(state * k[:, None], axis=0)
    answered = tl.sum(state * q[:, None], axis=0)
    error = beta * (v - decay * recalled)
    out = decay * answered + tl.sum(k * q, axis=0) * error
    tl.store(state_ptrs, decay * state + k[:, None] * error[None, :])
    BLOCKS: tl.constexpr = BLOCK_V // 16
    block = (head * D + part * BLOCK_V) // 16
    v_ptr += m * 2 * COLS
    ys_ptr += m * (COLS // 16)
    ym_ptr += m * (COLS // 16)
    squares = tl.sum(tl.reshape(out * out, (BLOCKS, 16)), axis=1)
    tl.store(ss_ptr + m * (COLS // 16) + block + tl.arange(0, BLOCKS), squares)
    quantize_blocks(out * norm * _silu(z), block, v_ptr, ys_ptr, ym_ptr, COLS, BLOCKS)


def gated_delta_step(
    projected: Tensor,
    weights: DeltaNetWeights,
    conv_ring: Tensor,
    state: Tensor,
    state_slots: Tensor,
    positions: Tensor,
    out: QuantActivation,
    block_v: int = 32,
    num_warps: int = 1,
    pdl: bool = False,
) -> None:
    """One token of each sequence through a layer's recurrence.

    projected:   [num_seqs, channels + num_v_heads * head_dim + 2 * num_v_heads] f32: q | k | v | z | alpha | beta
    conv_ring:   [num_slots, 4, channels] f32, the input of position p in column p % 4, zeros before the sequence;
                 column positions % 4 of the rows state_slots is written
    state:       [num_slots, num_v_heads, head_dim, head_dim] f32, rows state_slots changed in place
    state_slots: [num_seqs] int64, distinct; positions: [num_seqs] int64
    out:         [num_seqs, num_v_heads * head_dim] values, scales, sums and square_sums written; the consumer
                 multiplies
                 head h by 1 / sqrt(mean over the head of squares + eps)
    block_v:     columns of a head per program, a multiple of 16 that divides head_dim
    """
    num_seqs = projected.shape[0]
    _, num_v_heads, head_dim, _ = state.shape
    options = {"launch_pdl": True} if pdl else {}
    block_v = min(block_v, head_dim)
    _gated_delta_step_kernel[(head_dim // block_v, num_v_heads, num_seqs)](
        projected, projected.stride(0), conv_ring, state, state_slots, positions, weights.conv, weights.a,
        weights.dt_bias, weights.norm, out.values, out.scales, out.sums, out.square_sums,
        NK=weights.num_k_heads, NV=num_v_heads, D=head_dim, BLOCK_V=block_v, PDL=pdl, num_warps=num_warps, **options,
    )
