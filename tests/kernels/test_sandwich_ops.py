"""What layers with norms around each half need of their own: the norm before the residual, GELU, quantised outputs."""

from __future__ import annotations

import pytest
import torch

from kernels.gated_activation import gated_activation
from kernels.post_norm import post_norm
from kernels.reference import gated_activation as activation_reference
from kernels.reference import post_norm as norm_reference
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from tests.kernels.activations import poisoned_activation, relative_error

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # of a very negative gate


@pytest.mark.parametrize("hidden", [64, 1152])
def test_a_normed_row_joins_the_residual(hidden: int) -> None:
    y, residual = torch.randn(2, hidden) * 30, torch.randn(2, hidden)
    post, following = torch.rand(hidden) + 0.5, torch.rand(hidden) + 0.5
    expected = norm_reference.post_norm(y, post, 1e-6, residual)
    out = poisoned_activation(2, hidden)
    post_norm(y, post, 1e-6, residual, following, out)
    assert relative_error(residual, expected) < 1e-6
    emitted = quantize_rows(expected, following)
    assert relative_error(out.plain, emitted.plain) < 1e-6
    assert relative_error(out.square_sums, emitted.square_sums) < 1e-6
    assert relative_error(dequantize_rows(out), dequantize_rows(emitted)) < 1e-4
    assert relative_error(out.sums, emitted.sums) < 1e-3


@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize("ffn", [96, 512])
def test_gated_activation(is_gelu: bool, ffn: int) -> None:
    gate_up = torch.randn(2, 2 * ffn) * 4
    gate_up[0, :2] = torch.tensor([-90.0, 90.0])
    out = poisoned_activation(2, ffn)
    gated_activation(gate_up, out, is_gelu)
    expected = activation_reference.gated_activation(gate_up, is_gelu)
    assert relative_error(dequantize_rows(out), dequantize_rows(expected)) < 1e-4
    assert relative_error(out.sums, expected.sums) < 1e-3
