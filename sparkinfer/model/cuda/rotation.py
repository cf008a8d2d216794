"""How the kernels rotate a layer's queries and keys, with whatever else scales their scores. Knows layer types."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.rope import Rope, rope_of, sliding_rope_of

OWN_SLIDING_BASE = ("gemma3",)        # sliding layers rotate by a base of their own
NO_GLOBAL_POSITIONS = ("muse-glimmer",)  # full-attention layers do not rotate


@dataclass(frozen=True, slots=True)
class Rotation:
    """Of one layer.

    inv_freq:    [n_rot / 2] f32; zeros where nothing turns
    scale:       factor of the scores
    norm_factor: [head_dim] f32 that belongs to the weights of the norms of q and k, or None
    """

    inv_freq: Tensor
    scale: float
    norm_factor: Tensor | None = None


def rotation_of(hparams: HParams, layer_type: str, device: torch.device) -> Rotation:
    """YaRN's magnitude goes into the scores' scale where whole heads rotate, else into the norms of q and k."""
    rope = _rope(hparams, layer_type, device)
    if rope is None:
        return Rotation(torch.zeros(1, device=device), hparams.attention_scale)
    inv_freq = rope.inv_freq.float()
    if hparams.rope.dim == hparams.head_dim:
        return Rotation(inv_freq, hparams.attention_scale * rope.magnitude**2)
    factor = torch.ones(hparams.head_dim, device=device)
    factor[: hparams.rope.dim] = rope.magnitude
    return Rotation(inv_freq, hparams.attention_scale, None if rope.magnitude == 1.0 else factor)


def _rope(hparams: HParams, layer_type: str, device: torch.device) -> Rope | None:
    is_sliding = layer_type == "sliding_attention"
    if hparams.architecture in NO_GLOBAL_POSITIONS:
        return sliding_rope_of(hparams, device) if is_sliding else None
    if hparams.architecture in OWN_SLIDING_BASE and is_sliding:
        return sliding_rope_of(hparams, device)
    return rope_of(hparams, device)


def half_order(num_heads: int, head_dim: int, n_rot: int) -> Tensor:
    """Row order that turns neighbouring rotary pairs into halves, head by head.

    Queries and keys take the same order, so their products stay what they were.

    >>> half_order(1, 6, 4).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    within = torch.cat((torch.arange(0, n_rot, 2), torch.arange(1, n_rot, 2), torch.arange(n_rot, head_dim)))
    return (torch.arange(num_heads)[:, None] * head_dim + within).flatten()


def row_order(hparams: HParams, num_heads: int) -> Tensor | None:
    """Order of the rows of queries or keys, None as they are: the kernels rotate halves, some files pair neighbours."""
    rope = hparams.rope
    return half_order(num_heads, hparams.head_dim, rope.dim) if rope.is_interleaved else None
