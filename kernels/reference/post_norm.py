"""A normed row added to the residual stream, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor


def post_norm(y: Tensor, weight: Tensor, eps: float, residual: Tensor) -> Tensor:
    """[num_tokens, hidden] f32: residual + rms_norm(y) * weight."""
    return residual + y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight
