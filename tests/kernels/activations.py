"""Activations for tests: random rows, empty planes poisoned with NaN, and the relative error of a result."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantActivation
from kernels.reference.quant_gemv import quantize_rows


def random_activation(num_tokens: int, num_cols: int, device: str = "cpu", seed: int = 0) -> QuantActivation:
    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.randn(num_tokens, num_cols, generator=generator, device=device)
    return quantize_rows(x, torch.rand(num_cols, generator=generator, device=device) + 0.5)


def poisoned_activation(num_tokens: int, num_cols: int, device: str = "cpu") -> QuantActivation:
    def plane(width: int) -> Tensor:
        return torch.full((num_tokens, width), torch.nan, device=device)

    values = torch.full((num_tokens, 2, num_cols), -128, dtype=torch.int8, device=device)
    blocks = num_cols // 16
    return QuantActivation(values, plane(blocks), plane(blocks), plane(num_cols), plane(blocks))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """NaN (unwritten output) compares false with every bound."""
    return float((actual - expected).norm() / expected.norm())
