"""y = x / sqrt(mean(x^2) + eps) * weight over the last axis (RMSNorm, arXiv:1910.07467)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm over the last axis, computed in float32.

    x:       [..., hidden]  any float type
    weight:  [hidden] f32, the final multiplier (GGUF stores it ready to use), or None for a weightless norm
    returns  [..., hidden]  x's type
    """
    normed = F.rms_norm(x.float(), (x.shape[-1],), weight, eps)
    return normed.to(x.dtype)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: Callable[[Tensor], Tensor] = F.silu
) -> Tensor:
    """rms_norm(x) * silu(gate): the output norm of the gated delta net, per value head.

    x, gate: [..., head_dim]
    weight:  [head_dim] f32
    returns  [..., head_dim]  x's type
    """
    normed = F.rms_norm(x.float(), (x.shape[-1],), weight, eps) * silu(gate.float())
    return normed.to(x.dtype)
