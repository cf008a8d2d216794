"""Projection + residual + next input in one kernel equals the three steps in float32."""

from __future__ import annotations

import pytest
import torch

from kernels.few_rows import MIN_ROWS
from kernels.quant_format import QuantFormat
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.reference.quant_weight import dequantize
from tests.kernels.activations import poisoned_activation, random_activation, relative_error
from tests.kernels.random_weights import random_weight


def allowed_error(kind: QuantFormat, num_tokens: int) -> float:
    """From MIN_ROWS rows on both operands are f16 numbers, right to 2^-11."""
    return 1e-5 if kind.is_float or num_tokens < MIN_ROWS else 1e-3


@pytest.mark.parametrize(("kind", "num_tokens", "num_cols"), [(QuantFormat.Q8_0, 1, 288), (QuantFormat.Q6_K, 2, 512),
                                                              (QuantFormat.Q8_0, 7, 128), (QuantFormat.NVFP4, 7, 128),
                                                              (QuantFormat.F16, 1, 288), (QuantFormat.BF16, 6, 96),
                                                              (QuantFormat.F32, 2, 96)])
def test_residual_and_next_input(kind: QuantFormat, num_tokens: int, num_cols: int) -> None:
    x = random_activation(num_tokens, num_cols)
    weight = random_weight(64, num_cols, kind)
    residual = torch.randn(num_tokens, 64)
    norm_weight = torch.rand(64) + 0.5
    expected = residual + dequantize_rows(x) @ dequantize(weight).T
    out = poisoned_activation(num_tokens, 64)
    quant_gemv_residual(x, weight, residual, norm_weight, out)
    allowed = allowed_error(kind, num_tokens)
    assert relative_error(residual, expected) < allowed
    emitted = quantize_rows(expected, norm_weight)
    assert relative_error(out.plain, emitted.plain) < allowed
    assert relative_error(out.square_sums, emitted.square_sums) < allowed
    assert relative_error(dequantize_rows(out), dequantize_rows(emitted)) < 2e-3


@pytest.mark.parametrize("num_tokens", [2, 5])
@pytest.mark.parametrize("kind", [QuantFormat.Q8_0, QuantFormat.Q4_K, QuantFormat.F16, QuantFormat.F32])
def test_a_norm_per_group_of_the_input(kind: QuantFormat, num_tokens: int) -> None:
    x = random_activation(num_tokens, 256)
    weight = random_weight(32, 256, kind)
    residual = torch.randn(num_tokens, 32)
    factor = torch.rsqrt(x.square_sums.reshape(num_tokens, 2, 8).sum(-1) / 128 + 1e-6).repeat_interleave(128, dim=1)
    expected = residual + (dequantize_rows(x) * factor) @ dequantize(weight).T
    quant_gemv_residual(x, weight, residual, torch.ones(32), poisoned_activation(num_tokens, 32), group=128, eps=1e-6)
    assert relative_error(residual, expected) < allowed_error(kind, num_tokens)
