"""Rotary position embedding (RoFormer, arXiv:2104.09864): frequencies, per-token angles, and the two pairings.

A pair (u, v) turns by angle a = position * inv_freq: (u cos a - v sin a, v cos a + u sin a). Element pairs are
(2j, 2j+1) in the interleaved form and (j, j + n_rot/2) in the halves form; elements past n_rot pass through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def rope_inv_freq(n_rot: int, theta: float) -> Tensor:
    """inv_freq[j] = theta^(-2j / n_rot).

    returns [n_rot / 2] f32 on the CPU
    """
    exponents = torch.arange(0, n_rot, 2, dtype=torch.int64).float() / n_rot
    return 1.0 / (theta**exponents)


def yarn_inv_freq(
    inv_freq: Tensor,
    theta: float,
    factor: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> tuple[Tensor, float]:
    """YaRN (arXiv:2309.00071): a ramp between extrapolation and interpolation, and the factor on cos and sin.

    inv_freq: [n_rot / 2] f32
    returns   [n_rot / 2] f32, and the multiplier of cos and sin (on queries and keys alike)
    """
    n_rot = 2 * inv_freq.numel()

    def dimension_of(rotations: float) -> float:
        return n_rot * math.log(original_context / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(beta_fast)), 0)
    high = min(math.ceil(dimension_of(beta_slow)), n_rot - 1)
    steps = torch.arange(inv_freq.numel(), dtype=torch.float32, device=inv_freq.device)
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    return inv_freq * ((1.0 - ramp) + ramp / factor), 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def interleaved_axes(n_freq: int, sections: Sequence[int]) -> Tensor:
    """Which position axis (0 t, 1 h, 2 w) each frequency reads in interleaved multimodal rope.

    Frequency j reads h if j % 3 == 1 and j < 3 * sections[1], w if j % 3 == 2 and j < 3 * sections[2], else t.

    returns [n_freq] int64 on the CPU
    """
    j = torch.arange(n_freq)
    axes = torch.zeros(n_freq, dtype=torch.int64)
    for axis in (1, 2):
        axes[(j % 3 == axis) & (j < 3 * sections[axis])] = axis
    return axes


def rope_angles(positions: Tensor, inv_freq: Tensor, axes: Tensor | None = None) -> Tensor:
    """Angle of every token and frequency.

    positions: [num_tokens] int64, or [3, num_tokens] (t, h, w) for images
    inv_freq:  [n_rot / 2] f32
    axes:      [n_rot / 2] int64, the position axis of each frequency; read only for [3, num_tokens] positions
    returns    [num_tokens, n_rot / 2] f32
    """
    if positions.dim() == 2:
        by_freq = positions[0, :, None] if axes is None else positions.index_select(0, axes).t()
        return by_freq.float() * inv_freq
    return positions.float()[:, None] * inv_freq


def rope_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (2j, 2j+1) of the first n_rot elements of each head.

    x:        [num_tokens, num_heads, head_dim] f32
    cos, sin: [num_tokens, n_rot / 2] f32
    returns   [num_tokens, num_heads, head_dim] f32
    """
    n_rot = 2 * cos.shape[-1]
    pairs = torch.view_as_complex(x[..., :n_rot].unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * torch.complex(cos, sin)[:, None]).flatten(-2)
    return turned if n_rot == x.shape[-1] else torch.cat((turned, x[..., n_rot:]), dim=-1)


def rope_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (j, j + n_rot/2) of the first n_rot elements of each head ("NeoX" order).

    x:        [num_tokens, num_heads, head_dim] f32
    cos, sin: [num_tokens, n_rot / 2] f32
    returns   [num_tokens, num_heads, head_dim] f32
    """
    half = cos.shape[-1]
    u, v = x[..., :half], x[..., half : 2 * half]
    cos, sin = cos[:, None], sin[:, None]
    turned = (u * cos - v * sin, v * cos + u * sin)
    return torch.cat(turned if 2 * half == x.shape[-1] else (*turned, x[..., 2 * half :]), dim=-1)
