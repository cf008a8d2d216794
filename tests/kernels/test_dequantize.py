"""Dequantised matrices equal the reference's values, every element written."""

from __future__ import annotations

import pytest
import torch

from kernels.dequantize import dequantize
from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize as reference_dequantize
from tests.kernels.random_weights import random_weight

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kind", [kind for kind in QuantFormat if not kind.is_float])
@pytest.mark.parametrize("num_cols", [256, 1536])
def test_every_element_is_written(kind: QuantFormat, num_cols: int) -> None:
    weight = random_weight(37, num_cols, kind, DEVICE)
    expected = reference_dequantize(weight)
    out = torch.full((37, num_cols), torch.nan, device=DEVICE)
    dequantize(weight, out)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)
    half = torch.full((37, num_cols), torch.nan, dtype=torch.float16, device=DEVICE)
    dequantize(weight, half)
    torch.testing.assert_close(half, expected.half(), rtol=1e-3, atol=1e-6)
