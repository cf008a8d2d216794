"""Products of one row through the ring in shared memory, on the card: against the references, at few and many steps,
and with more blocks than programs."""

from __future__ import annotations

import pytest
import torch

from kernels import streamed_products as module
from kernels.quant_format import QuantActivation, QuantFormat
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.reference.quant_moe import swiglu
from kernels.reference.quant_weight import dequantize
from kernels.streamed_products import fits, streamed_residual, streamed_swiglu
from tests.kernels.activations import poisoned_activation, random_activation, relative_error
from tests.kernels.random_weights import random_weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),
]
EPS = 1e-6
KINDS = [QuantFormat.Q4_K, QuantFormat.Q6_K]


def _assert_same(actual: QuantActivation, expected: QuantActivation) -> None:
    assert relative_error(dequantize_rows(actual), dequantize_rows(expected)) < 1e-4
    assert relative_error(actual.sums, expected.sums) < 1e-4


@pytest.mark.parametrize("programs", [1, 3, 396])
@pytest.mark.parametrize("num_cols", [3072, 5120])
@pytest.mark.parametrize("kind", KINDS)
def test_swiglu(kind: QuantFormat, num_cols: int, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRAMS", programs)
    torch.backends.cuda.matmul.allow_tf32 = False
    x = random_activation(1, num_cols, "cuda")
    gate, up = (random_weight(160, num_cols, kind, "cuda", seed) for seed in (3, 4))
    assert fits(x, gate) == (num_cols >= module.MIN_COLS)
    out = poisoned_activation(1, 160, "cuda")
    streamed_swiglu(x, gate, up, out, EPS, pdl=False)
    _assert_same(out, swiglu(x, gate, up, EPS))


@pytest.mark.parametrize(("num_cols", "group"), [(3072, 0), (6144, 128), (17408, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_residual(kind: QuantFormat, num_cols: int, group: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    x = random_activation(1, num_cols, "cuda")
    weight = random_weight(160, num_cols, kind, "cuda", seed=3)
    norm, residual = torch.rand(160, device="cuda") + 0.5, torch.randn(1, 160, device="cuda")
    rows = dequantize_rows(x)
    if group:
        factor = torch.rsqrt(x.square_sums.reshape(1, -1, group // 16).sum(-1) / group + EPS)
        rows = rows * factor.repeat_interleave(group, dim=1)
    sum_of_both = residual + rows @ dequantize(weight).T
    expected = quantize_rows(sum_of_both, norm)
    out = poisoned_activation(1, 160, "cuda")
    streamed_residual(x, weight, residual, norm, out, group, EPS, pdl=False)
    assert relative_error(residual, sum_of_both) < 1e-5
    assert relative_error(out.square_sums, expected.square_sums) < 1e-5
    assert relative_error(out.plain, expected.plain) < 1e-5
    _assert_same(out, expected)
