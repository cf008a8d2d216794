"""One decode step of a Gated DeltaNet layer between its projections, in plain float32, on a ring of conv inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.gated_delta_rule import l2_normalize, recurrent_gated_delta_rule


def gated_delta_step(
    projected: Tensor, conv: Tensor, a: Tensor, dt_bias: Tensor, norm: Tensor, num_k_heads: int, conv_ring: Tensor,
    state: Tensor, state_slots: Tensor, positions: Tensor, eps: float,
) -> Tensor:
    """[num_seqs, num_v_heads * head_dim] f32; `conv_ring` and `state` changed in place as the kernel changes them."""
    num_seqs = projected.shape[0]
    _, num_v_heads, head_dim, _ = state.shape
    channels = conv.shape[1]
    mixed, z, alpha, beta = projected.split((channels, num_v_heads * head_dim, num_v_heads, num_v_heads), dim=-1)
    total = mixed * conv[3]
    for back in range(1, 4):
        total = total + conv_ring[state_slots, (positions - back) % 4] * conv[3 - back]
    conv_ring[state_slots, positions % 4] = mixed
    q, k, v = F.silu(total).split((num_k_heads * head_dim, num_k_heads * head_dim, num_v_heads * head_dim), dim=-1)
    repeat = num_v_heads // num_k_heads
    q = l2_normalize(q.reshape(num_seqs, 1, num_k_heads, head_dim)).repeat(1, 1, repeat, 1) * head_dim**-0.5
    k = l2_normalize(k.reshape(num_seqs, 1, num_k_heads, head_dim)).repeat(1, 1, repeat, 1)
    g = a * F.softplus(alpha + dt_bias)
    out, state[state_slots] = recurrent_gated_delta_rule(
        q, k, v.reshape(num_seqs, 1, num_v_heads, head_dim), g[:, None], torch.sigmoid(beta)[:, None],
        state[state_slots],
    )
    out = out[:, 0]
    out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + eps) * norm
    return out.reshape(num_seqs, -1) * F.silu(z)
