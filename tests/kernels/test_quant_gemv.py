"""The quantised matrix-vector kernel equals its float32 reference, for every format, width and row count."""

from __future__ import annotations

import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.quant_gemv import quant_gemv
from kernels.reference import quant_gemv as reference
from tests.kernels.random_weights import random_weight

EPS = 1e-6
F16_ERROR = 1e-3  # both operands of MIN_ROWS rows and more are f16 numbers, right to 2^-11


def _activation(num_tokens: int, num_cols: int):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(num_cols)
    x = torch.randn(num_tokens, num_cols, generator=generator)
    return reference.quantize_rows(x, torch.rand(num_cols, generator=generator) + 0.5)


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", list(QuantFormat))
def test_each_format_multiplies_as_its_values_say(kind: QuantFormat) -> None:
    x = _activation(1, 512)
    weight = random_weight(9, 512, kind, seed=3)
    out = torch.full((1, 9), torch.nan)
    quant_gemv(x, [weight], EPS, out=out)
    assert _error(out, reference.quant_gemv(x, [weight], EPS)) < 1e-5


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_three_matrices_of_different_formats_share_a_launch(num_tokens: int) -> None:
    x = _activation(num_tokens, 256)
    weights = [random_weight(5, 256, QuantFormat.Q4_K), random_weight(2, 256, QuantFormat.Q6_K, seed=1),
               random_weight(3, 256, QuantFormat.F32, seed=2)]
    out = torch.full((num_tokens, 10), torch.nan)
    quant_gemv(x, weights, None, out=out)
    assert _error(out, reference.quant_gemv(x, weights, None)) < 1e-5


def test_a_row_of_a_batch_has_the_bits_it_has_alone() -> None:
    x = _activation(2, 288)
    weight = random_weight(7, 288, QuantFormat.Q5_1)
    both = quant_gemv(x, [weight], EPS)
    second = reference.quantize_rows(torch.zeros(1, 288))
    alone = type(second)(*(getattr(x, name)[1:] for name in ("values", "scales", "sums", "plain", "square_sums")))
    assert torch.equal(both[1:], quant_gemv(alone, [weight], EPS))


@pytest.mark.parametrize("kind", [kind for kind in QuantFormat if not kind.is_float])
def test_few_rows_of_each_format(kind: QuantFormat) -> None:
    x = _activation(6, 768)
    weight = random_weight(33, 768, kind, seed=3)
    out = torch.full((6, 33), torch.nan)
    quant_gemv(x, [weight], EPS, out=out)
    assert _error(out, reference.quant_gemv(x, [weight], EPS)) < F16_ERROR


def test_few_rows_give_a_row_the_same_bits_whatever_its_number() -> None:
    x = _activation(8, 256)
    weight = random_weight(16, 256, QuantFormat.Q4_K)
    planes = ("values", "scales", "sums", "plain", "square_sums")
    five = type(x)(*(getattr(x, name)[:5].contiguous() for name in planes))
    assert torch.equal(quant_gemv(x, [weight], EPS)[:5], quant_gemv(five, [weight], EPS))


def test_few_rows_of_blocks_beside_plain_numbers() -> None:
    x = _activation(6, 256)
    weights = [random_weight(20, 256, QuantFormat.Q4_K), random_weight(3, 256, QuantFormat.F16, seed=1),
               random_weight(2, 256, QuantFormat.F32, seed=2)]
    out = torch.full((6, 25), torch.nan)
    quant_gemv(x, weights, EPS, out=out)
    assert _error(out, reference.quant_gemv(x, weights, EPS)) < F16_ERROR


def test_a_zero_row_gives_zeros() -> None:
    x = reference.quantize_rows(torch.zeros(1, 64))
    out = quant_gemv(x, [random_weight(4, 64, QuantFormat.Q8_0)], EPS)
    assert torch.equal(out, torch.zeros(1, 4))
