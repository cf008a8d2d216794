"""Which numbers the products of prompts are made of, and how far that moves them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from sparkinfer.model.cuda.prompt_ops import PromptOps
from sparkinfer.model.cuda.prompt_products import PromptProducts
from tests.kernels.random_weights import random_weight

CPU = torch.device("cpu")


@pytest.mark.parametrize("takes_fp8", [False, True])
@pytest.mark.parametrize("is_gelu", [False, True])
def test_gated_halves(takes_fp8: bool, is_gelu: bool) -> None:
    gate, up, down = (random_weight(256, 256, QuantFormat.Q8_0, "cpu", seed) for seed in range(3))
    x = torch.randn(40, 256, generator=torch.Generator().manual_seed(1))
    row_gate = torch.randn(40, 1, generator=torch.Generator().manual_seed(2))
    halves = [x @ dequantize(weight).T for weight in (gate, up)]
    middle = (F.gelu(halves[0], approximate="tanh") if is_gelu else F.silu(halves[0])) * halves[1]
    expected = 0.5 * (middle * row_gate.sigmoid()) @ dequantize(down).T
    products = PromptProducts(PromptOps.of(CPU), False, takes_fp8)
    found = products.gated(x, (gate, up, down), row_gate[:, 0], 0.5, is_gelu)
    error = float((found - expected).norm() / expected.norm())
    assert 0.02 < error < 0.1 if takes_fp8 else error < 1e-5


@pytest.mark.parametrize("takes_fp8", [False, True])
@pytest.mark.parametrize("last_rows", [96, 100])
def test_products_of_e4m3_where_they_fit(takes_fp8: bool, last_rows: int) -> None:
    weights = [random_weight(rows, 512, QuantFormat.Q4_K, "cpu") for rows in (128, last_rows)]
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(1))
    found = PromptProducts(PromptOps.of(CPU), False, takes_fp8).product(x, weights)
    expected = x @ torch.cat([dequantize(weight) for weight in weights]).T
    error = float((found - expected).norm() / expected.norm())
    if takes_fp8 and last_rows % 16 == 0:
        assert 0.02 < error < 0.05  # three bits of mantissa, twice
    else:
        assert error < 1e-5
