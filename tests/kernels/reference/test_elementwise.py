"""Norms and activations against their formulas, in bf16 too."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.reference.activation import activate_and_mul
from kernels.reference.numerics import FAST
from kernels.reference.rms_norm import gated_rms_norm, rms_norm


@pytest.mark.parametrize("eps", [1e-6, 1e-1])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(eps: float, weighted: bool) -> None:
    x = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(0.5, 2, 16) if weighted else None
    expected = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * (1.0 if weight is None else weight)
    torch.testing.assert_close(rms_norm(x, weight, eps), expected)


def test_norm_of_bf16_is_computed_in_float32() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.ones(64)
    got = rms_norm(x, weight, 1e-6)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, rms_norm(x.float(), weight, 1e-6).bfloat16(), rtol=0, atol=0)


def test_gated_rms_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate, weight = torch.randn(5, 8, generator=generator), torch.randn(5, 8, generator=generator), torch.ones(8) * 2
    expected = rms_norm(x, weight, 1e-6) * gate / (1 + (-gate).exp())
    torch.testing.assert_close(gated_rms_norm(x, gate, weight, 1e-6), expected)


def test_activations_put_the_gate_first() -> None:
    gate, up = torch.tensor([[-2.0, 0.5]]), torch.tensor([[3.0, 4.0]])
    pair = torch.cat((gate, up), dim=-1)
    torch.testing.assert_close(activate_and_mul(pair, FAST.silu), gate / (1 + (-gate).exp()) * up)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(activate_and_mul(pair, FAST.gelu_tanh), 0.5 * gate * (1 + torch.tanh(inner)) * up)
