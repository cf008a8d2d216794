"""RMSNorm with the stored multiplier. Knows one vector; never what it normalises."""

from __future__ import annotations

from torch import Tensor

from kernels.reference.rms_norm import rms_norm
from sparkinfer.model.module import Module, unloaded


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight.

    weight: [size] f32
    """

    def __init__(self, size: int, eps: float) -> None:
        self.weight = unloaded(size)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size] -> [..., size]."""
        return rms_norm(x, self.weight, self.eps)
