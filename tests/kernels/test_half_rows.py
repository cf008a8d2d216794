"""Rows of f16 numbers that kernels leave for the next product: the product is that of the rows, however they grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.moe_down import moe_down
from kernels.post_norm import post_norm
from kernels.quant_format import HalfRows, QuantActivation, QuantFormat, QuantWeight
from kernels.quant_gemv import quant_gemv
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.quant_swiglu import quant_swiglu
from kernels.quantize_rows import quantize_rows
from kernels.reference import half_rows as half_reference
from kernels.reference import quant_gemv as reference
from kernels.reference.quant_weight import dequantize
from sparkinfer.model.cuda.half_forms import HalfForms
from tests.kernels.activations import poisoned_activation, random_activation
from tests.kernels.random_weights import random_weight

EPS = 1e-6
HIDDEN = 256
ERROR = 2.0**-10  # of a product of two f16 operands, each right to 2^-11


def _readers(kind: QuantFormat) -> list[QuantWeight]:
    return [random_weight(24, HIDDEN, kind, seed=7)]


def _empty(num_tokens: int, readers: list[QuantWeight]) -> QuantActivation:
    return HalfForms(poisoned_activation(num_tokens, HIDDEN)).read_by(readers)


def _half(x: QuantActivation) -> HalfRows:
    assert x.half is not None
    return x.half


def _errors(x: QuantActivation, exact: Tensor, readers: list[QuantWeight]) -> Tensor:
    """Of a product with x, per row."""
    return (quant_gemv(x, readers, EPS) - exact).norm(dim=1)


def _check(out: QuantActivation, residual: Tensor, norm_weight: Tensor, readers: list[QuantWeight]) -> Tensor:
    """The product of what was left, without its integers, is that of the rows; it leaves hints for the next ones.

    returns how much larger the rows' errors are than those of f16 numbers at most 1, made of the integers
    """
    half = half_reference.columns(_half(out), len(residual))
    smallest = 2.0**-25 * _half(out).factors[: len(half), None]
    assert ((half - out.plain).abs() <= 2.0**-11 * out.plain.abs() + smallest).all()
    only = replace(out, values=torch.full_like(out.values, -128), scales=torch.full_like(out.scales, torch.nan))
    row = residual * norm_weight
    factor = torch.rsqrt(residual.square().mean(1, keepdim=True) + EPS)
    weight = dequantize(readers[0])
    exact = row @ weight.T * factor
    errors = _errors(only, exact, readers)
    length = (row * factor).norm(dim=1) * weight.norm()
    assert (errors <= ERROR * length).all()
    hints = _half(out).hints[: len(residual), None]
    assert ((hints * 64 <= factor * 1.001) & (hints * 128 >= factor * 0.999)).all()
    return errors / (_errors(replace(out, half=None), exact, readers) + 1e-9 * length)


@pytest.mark.parametrize("kind", [QuantFormat.Q4_K, QuantFormat.Q8_0])
def test_the_first_rows(kind: QuantFormat) -> None:
    torch.manual_seed(1)
    readers = _readers(kind)
    x = torch.randn(5, HIDDEN) * torch.tensor([1e-3, 1.0, 1e3, 1e-2, 0.0])[:, None]
    x[3, 17] = 1e3
    norm_weight = torch.rand(HIDDEN) + 0.5
    out = _empty(5, readers)
    quantize_rows(x, norm_weight, out, EPS)
    assert (_check(out, x, norm_weight, readers)[:3] < 2).all()  # the fourth's error is one number's rounding


def _changed_rows(readers: list[QuantWeight]) -> tuple[QuantActivation, Tensor]:
    """(rows, those after them): alike, a thousand times as large, one column 1e5 times the others, 1/100, tiny."""
    before = torch.randn(5, HIDDEN) * torch.tensor([1.0, 0.02, 0.02, 10.0, 1e-3])[:, None]
    after = torch.randn(5, HIDDEN) * torch.tensor([1.0, 20.0, 0.02, 0.1, 1e-3])[:, None]
    after[2, 100] = 2000.0
    out = _empty(5, readers)
    quantize_rows(before, torch.ones(HIDDEN), out, EPS)
    return out, after


@pytest.mark.parametrize(
    ("kind", "num_cols"), [(QuantFormat.Q4_K, 256), (QuantFormat.Q8_0, 256), (QuantFormat.Q4_K, 32)]
)
def test_rows_that_a_projection_changes(kind: QuantFormat, num_cols: int) -> None:
    torch.manual_seed(0)
    readers = _readers(kind)
    out, after = _changed_rows(readers)
    weight = random_weight(HIDDEN, num_cols, QuantFormat.Q8_0, seed=3)
    x = reference.quantize_rows(torch.randn(5, num_cols) * 1e-3)
    residual = after - reference.dequantize_rows(x) @ dequantize(weight).T
    norm_weight = torch.rand(HIDDEN) + 0.5
    quant_gemv_residual(x, weight, residual, norm_weight, out)
    assert (_check(out, residual, norm_weight, readers) < 2).all()


def test_rows_that_experts_change() -> None:
    torch.manual_seed(1)
    readers = _readers(QuantFormat.Q4_K)
    out, after = _changed_rows(readers)
    down = random_weight(2 * HIDDEN, 32, QuantFormat.Q8_0, seed=4)
    h = reference.quantize_rows(torch.zeros(5, 32))
    norm_weight = torch.rand(HIDDEN) + 0.5
    moe_down(h, torch.zeros(5, 1, dtype=torch.int32), torch.zeros(5, 2), down, None, after, norm_weight, out)
    assert (_check(out, after, norm_weight, readers) < 2).all()


def test_rows_that_a_normed_row_changes() -> None:
    torch.manual_seed(2)
    readers = _readers(QuantFormat.Q8_0)
    out, after = _changed_rows(readers)
    norm_weight = torch.rand(HIDDEN) + 0.5
    post_norm(torch.zeros(5, HIDDEN), torch.ones(HIDDEN), EPS, after, norm_weight, out)
    assert (_check(out, after, norm_weight, readers) < 2).all()


@pytest.mark.parametrize("down_kind", [QuantFormat.Q6_K, QuantFormat.Q8_0])
def test_the_middle_of_a_feed_forward_part(down_kind: QuantFormat) -> None:
    """Numbers beyond f16 come back whole with the factor that keeps them within."""
    ffn = 256
    gate, up = (random_weight(ffn, HIDDEN, QuantFormat.Q4_K, seed=seed) for seed in (5, 6))
    down = random_weight(32, ffn, down_kind, seed=8)
    x = random_activation(6, HIDDEN, seed=1)
    rows = reference.dequantize_rows(x) * reference.rms_factor(x, EPS)
    exact = torch.nn.functional.silu(rows @ dequantize(gate).T) * (rows @ dequantize(up).T)
    factor = 2.0 ** -torch.ceil(torch.log2(exact.abs().max() / 4e4)).item()
    h = HalfForms(poisoned_activation(6, ffn)).read_by([down])
    quant_swiglu(x, gate, up, h, EPS, half_factor=factor)
    assert torch.equal(_half(h).factors, torch.full((8,), 1 / factor))
    residual = torch.zeros(6, 32)
    quant_gemv_residual(h, down, residual, torch.ones(32), poisoned_activation(6, 32))
    expected = exact @ dequantize(down).T
    assert (residual - expected).norm() / expected.norm() < 3e-3


def test_a_row_leaves_the_same_numbers_whatever_its_place() -> None:
    readers = _readers(QuantFormat.Q4_K)
    x = torch.randn(8, HIDDEN) * 2.0 ** torch.arange(8)[:, None]
    outs = [_empty(8, readers), _empty(5, readers)]
    quantize_rows(x, torch.ones(HIDDEN), outs[0], EPS)
    quantize_rows(x.flip(0)[:5].contiguous(), torch.ones(HIDDEN), outs[1], EPS)
    eight, five = (quant_gemv(out, readers, EPS) for out in outs)
    assert torch.equal(eight.flip(0)[:5], five)
    assert torch.equal(_half(outs[0]).hints.flip(0)[:5], _half(outs[1]).hints[:5])
