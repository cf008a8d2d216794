"""Which numbers the products of prompts are made of, and how far that moves them."""

from __future__ import annotations

import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from sparkinfer.model.cuda.prompt_products import PromptProducts
from tests.kernels.random_weights import random_weight


@pytest.mark.parametrize("takes_fp8", [False, True])
@pytest.mark.parametrize("last_rows", [96, 100])
def test_products_of_e4m3_where_they_fit(takes_fp8: bool, last_rows: int) -> None:
    weights = [random_weight(rows, 512, QuantFormat.Q4_K, "cpu") for rows in (128, last_rows)]
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(1))
    found = PromptProducts(torch.float32, False, takes_fp8).product(x, weights)
    expected = x @ torch.cat([dequantize(weight) for weight in weights]).T
    error = float((found - expected).norm() / expected.norm())
    if takes_fp8 and last_rows % 16 == 0:
        assert 0.02 < error < 0.05  # three bits of mantissa, twice
    else:
        assert error < 1e-5
