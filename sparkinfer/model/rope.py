"""One rotary embedding of a model: its frequencies, scaling and pairing. Knows positions; never layers."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.rope import (
    interleaved_axes,
    rope_angles,
    rope_halves,
    rope_interleaved,
    rope_inv_freq,
    yarn_inv_freq,
)
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.rope_params import RopeParams


class Rope:
    """Angles of a step's tokens and their application to heads.

    inv_freq:  [dim / 2] f32
    magnitude: multiplier of cos and sin (YaRN)
    axes:      [dim / 2] int64, position axis of each frequency, for models with image positions
    """

    def __init__(self, params: RopeParams, inv_freq: Tensor, magnitude: float = 1.0) -> None:
        self.inv_freq = inv_freq
        self.magnitude = magnitude
        self.axes = interleaved_axes(inv_freq.numel(), params.sections).to(inv_freq.device) if params.sections else None
        self._rotate = rope_interleaved if params.is_interleaved else rope_halves

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [num_tokens] or [3, num_tokens] int64 -> cos and sin [num_tokens, dim / 2] f32."""
        angles = rope_angles(positions, self.inv_freq, self.axes)
        cos, sin = torch.cos(angles), torch.sin(angles)
        return (cos, sin) if self.magnitude == 1.0 else (cos * self.magnitude, sin * self.magnitude)

    def rotate(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        """x: [num_tokens, num_heads, head_dim] f32 -> same."""
        return self._rotate(x, *cos_sin)


def rope_of(hparams: HParams, device: torch.device) -> Rope:
    """The rotary embedding of full-attention layers, scaled as the metadata says."""
    params = hparams.rope
    inv_freq, magnitude = rope_inv_freq(params.dim, params.theta), 1.0
    if params.scaling_type == "linear":
        inv_freq = inv_freq / params.scaling_factor
    elif params.scaling_type == "yarn":
        inv_freq, magnitude = yarn_inv_freq(
            inv_freq,
            params.theta,
            params.scaling_factor,
            params.original_context,
            params.yarn_beta_fast,
            params.yarn_beta_slow,
        )
        magnitude *= params.yarn_attn_factor
    return Rope(params, inv_freq.to(device), magnitude)


def sliding_rope_of(hparams: HParams, device: torch.device) -> Rope:
    """The rotary embedding of sliding-window layers where they have a base of their own: never scaled."""
    return Rope(hparams.rope, rope_inv_freq(hparams.rope.dim, hparams.rope.sliding_theta).to(device))
