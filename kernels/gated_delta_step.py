"""One decode step of a Gated DeltaNet layer between its projections: convolution, SiLU, L2 norms, gates, delta rule,
gated RMS norm, quantised output. One program per value head and sequence holds the head's whole state in registers.

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

from kernels.quant_dot import quantize_blocks
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
def _inputs(
    projected_ptr, ring_ptr, conv_ptr, head, position, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr
):
    """(q, k, v after convolution and SiLU; silu(z)) of a head, each [D] f32; its columns of the ring are written.

    One [4, D] tile: on four vectors the compiler would repeat every load in each warp.
    """
    C: tl.constexpr = (2 * NK + NV) * D
    part = tl.arange(0, 4)[:, None]
    k_head = head % NK
    group = tl.where(part == 0, k_head, tl.where(part == 1, NK + k_head, 2 * NK + head + tl.where(part == 3, NV, 0)))
    channel = group * D + tl.arange(0, D)[None, :]
    is_conv = part < 3
    current = tl.load(projected_ptr + channel)
    total = current * tl.load(conv_ptr + channel * 4 + 3, mask=is_conv, other=1.0)
    for back in tl.static_range(1, 4):
        column = (position + 4 - back) % 4
        past = tl.load(ring_ptr + column * C + channel, mask=is_conv, other=0.0)
        total += past * tl.load(conv_ptr + channel * 4 + 3 - back, mask=is_conv, other=0.0)
    owner = (part == 2) | (head < NK)  # heads that share a key head would store the same numbers
    tl.store(ring_ptr + position % 4 * C + channel, current, mask=is_conv & owner)
    total = total / (1.0 + tl.exp(-total))
    q = tl.sum(tl.where(part == 0, total, 0.0), axis=0)
    k = tl.sum(tl.where(part == 1, total, 0.0), axis=0)
    v = tl.sum(tl.where(part == 2, total, 0.0), axis=0)
    return q, k, v, tl.sum(tl.where(part == 3, total, 0.0), axis=0)


@triton.jit
def _gated_delta_step_kernel(
    projected_ptr, stride_m, ring_ptr, state_ptr, slots_ptr, positions_ptr, conv_ptr, a_ptr, dt_ptr, norm_ptr,
    v_ptr, ys_ptr, ym_ptr, eps, NK: tl.constexpr, NV: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):
    head = tl.program_id(0)
    m = tl.program_id(1)
    C: tl.constexpr = (2 * NK + NV) * D
    COLS: tl.constexpr = NV * D
    slot = tl.load(slots_ptr + m).to(tl.int64)
    rows = tl.arange(0, D)
    state_ptrs = state_ptr + (slot * NV + head) * D * D + rows[:, None] * D + rows[None, :]
    state = tl.load(state_ptrs)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    position = tl.load(positions_ptr + m).to(tl.int32)
    projected_ptr += m * stride_m
    ring_ptr += slot * 4 * C
    q, k, v, gate = _inputs(projected_ptr, ring_ptr, conv_ptr, head, position, NK, NV, D)
    alpha = tl.load(projected_ptr + C + COLS + head) + tl.load(dt_ptr + head)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(projected_ptr + C + COLS + NV + head)))
    softplus = tl.where(alpha > 20.0, alpha, tl.log(1.0 + tl.exp(tl.minimum(alpha, 20.0))))
    decay = tl.exp(tl.load(a_ptr + head) * softplus)
    k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
    q = q * (tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6) * (D**-0.5))
    recalled = tl.sum(state * k[:, None], axis=0)
    answered = tl.sum(state * q[:, None], axis=0)
    error = beta * (v - decay * recalled)
    out = decay * answered + tl.sum(k * q, axis=0) * error
    tl.store(state_ptrs, decay * state + k[:, None] * error[None, :])
    out = out * tl.rsqrt(tl.sum(out * out, axis=0) / D + eps) * tl.load(norm_ptr + rows)
    quantize_blocks(out * gate, head * (D // 16), v_ptr + m * COLS, ys_ptr + m * (COLS // 16), ym_ptr + m * (COLS // 16), COLS,
                    D // 16)


def gated_delta_step(
    projected: Tensor,
    weights: DeltaNetWeights,
    conv_ring: Tensor,
    state: Tensor,
    state_slots: Tensor,
    positions: Tensor,
    out: QuantActivation,
    eps: float,
    num_warps: int = 8,
    pdl: bool = False,
) -> None:
    """One token of each sequence through a layer's recurrence.

    projected:   [num_seqs, channels + num_v_heads * head_dim + 2 * num_v_heads] f32: q | k | v | z | alpha | beta
    conv_ring:   [num_slots, 4, channels] f32, the input of position p in column p % 4, zeros before the sequence;
                 column positions % 4 of the rows state_slots is written
    state:       [num_slots, num_v_heads, head_dim, head_dim] f32, rows state_slots changed in place
    state_slots: [num_seqs] int64, distinct; positions: [num_seqs] int64
    out:         [num_seqs, num_v_heads * head_dim] values, scales and sums written
    """
    num_seqs = projected.shape[0]
    _, num_v_heads, head_dim, _ = state.shape
    options = {"launch_pdl": True} if pdl else {}
    _gated_delta_step_kernel[(num_v_heads, num_seqs)](
        projected, projected.stride(0), conv_ring, state, state_slots, positions, weights.conv, weights.a,
        weights.dt_bias, weights.norm, out.values, out.scales, out.sums, eps,
        NK=weights.num_k_heads, NV=num_v_heads, D=head_dim, PDL=pdl, num_warps=num_warps, **options,
    )
