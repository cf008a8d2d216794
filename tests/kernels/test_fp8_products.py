"""Operands of e4m3 products against their reference, bit for bit; products against sums of the same numbers in f64."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8_products import fits, fp8_products, gate_up_rows, quantize_rows, quantize_weights
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference.fp8_products import rounded
from kernels.reference.prompt_rows import gate_up
from kernels.reference.quant_weight import dequantize
from tests.kernels.random_weights import random_weight

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_PRODUCTS = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def given_back(values: torch.Tensor, scales: torch.Tensor, block_rows: int) -> torch.Tensor:
    """Operands as f64 numbers."""
    wide = scales.double().repeat_interleave(block_rows, 0).repeat_interleave(128, 1)
    return values.double() * wide[: values.shape[0], : values.shape[1]]


def rows_like_activations(num_rows: int, num_cols: int) -> torch.Tensor:
    """Rows of very different sizes, numbers from the largest to far below what e4m3 can tell from zero, zeros."""
    generator = torch.Generator().manual_seed(num_rows)
    sizes = 10.0 ** (torch.rand(num_rows, 1, generator=generator) * 6 - 4)
    x = torch.randn(num_rows, num_cols, generator=generator) * sizes
    x[:, ::7] *= 2.0 ** -torch.randint(0, 18, (num_rows, len(range(0, num_cols, 7))), generator=generator)
    x[0] = 0.0
    x[-1, 128:256] = 0.0
    return x.half().to(DEVICE)


@pytest.mark.parametrize("num_tokens", [1, 4, 33])
def test_rows_of_x(num_tokens: int) -> None:
    x = rows_like_activations(num_tokens, 384)
    found = quantize_rows(x)
    assert (found.values.shape[0] % 4, found.scales.stride(0)) == (0, 1)
    assert not found.values[num_tokens:].float().any()
    ours = given_back(found.values, found.scales, 1)[:num_tokens]
    torch.testing.assert_close(ours.float(), rounded(x, 1), rtol=1e-6, atol=1e-12)
    size = x.double().abs()
    assert bool(((ours - x).abs() <= size / 15.9 + size.amax(1, keepdim=True) / 448 / 1023).all())


@pytest.mark.parametrize("num_cols", [128, 1152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("is_gelu", "has_gate"), [(False, False), (True, False), (False, True)])
def test_rows_of_gated_halves(num_cols: int, dtype: torch.dtype, is_gelu: bool, has_gate: bool) -> None:
    num_tokens = 5
    x = torch.randn(num_tokens, 2 * num_cols, generator=torch.Generator().manual_seed(3)).to(DEVICE, dtype)
    row_gate = torch.randn(num_tokens, 3, generator=torch.Generator().manual_seed(4)).to(DEVICE)[:, 1]
    gate = row_gate if has_gate else None
    expected = torch.empty(num_tokens, num_cols, device=DEVICE)
    gate_up(x.float(), gate, is_gelu, expected, 0.25)
    found = gate_up_rows(x, gate, is_gelu, 0.25)
    assert (found.num_tokens, found.values.shape, found.scales.stride(0)) == (num_tokens, (8, num_cols), 1)
    assert not found.values[num_tokens:].float().any()
    ours = given_back(found.values, found.scales, 1)[:num_tokens]
    torch.testing.assert_close(ours.float(), rounded(expected, 1), rtol=0.15, atol=1e-5)
    assert ((ours - rounded(expected, 1)).abs() <= 1e-6 * ours.abs()).float().mean() > 0.99


@pytest.mark.parametrize("kind", QuantFormat)
def test_blocks_of_weights(kind: QuantFormat) -> None:
    """Two matrices end to end; the last block of rows is not whole, nor are columns' blocks four by four."""
    weights = [random_weight(128, 1280, kind, DEVICE), random_weight(144, 1280, kind, DEVICE)]
    assert fits(weights)
    found = quantize_weights(weights)
    assert found.scales.shape == (3, 12)
    ours = given_back(found.values, found.scales, 128)
    expected = torch.cat([rounded(dequantize(weight), 128) for weight in weights])
    is_near = (ours.float() - expected).abs() <= 1e-6 * expected.abs()
    assert is_near.float().mean() > 0.999  # a product's last bit may choose another e4m3 number
    torch.testing.assert_close(ours.float(), expected, rtol=0.15, atol=float(expected.abs().max()) / 448 / 512 * 1.01)


def test_fits() -> None:
    def weight(num_rows: int, num_cols: int) -> QuantWeight:
        plane = torch.empty(0)
        return QuantWeight(QuantFormat.Q8_0, num_rows, num_cols, plane, plane, plane, plane, plane)

    assert fits([weight(144, 256)])
    assert not fits([weight(144, 256), weight(128, 256)])  # a block of rows would have two matrices
    assert not fits([weight(144, 288)])
    assert not fits([weight(140, 256)])


@pytest.mark.skipif(not HAS_PRODUCTS, reason="needs an NVIDIA GPU of compute capability 9.0")
@pytest.mark.parametrize("num_tokens", [1, 63, 64, 600])
def test_products(num_tokens: int) -> None:
    weights = [random_weight(128, 1280, QuantFormat.Q4_K, DEVICE), random_weight(144, 1280, QuantFormat.Q6_K, DEVICE)]
    x = rows_like_activations(num_tokens, 1280)
    rows, matrix = quantize_rows(x), quantize_weights(weights)
    w = given_back(matrix.values, matrix.scales, 128)
    expected = given_back(rows.values, rows.scales, 1)[:num_tokens] @ w.T
    found = fp8_products(rows, weights)
    assert found.shape == expected.shape
    sizes = x.double().norm(dim=1, keepdim=True) * w.norm(dim=1)
    assert bool(((found - expected).abs() <= 2e-4 * sizes).all())
