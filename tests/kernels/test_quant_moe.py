"""Experts of quantised weights: choice, halves and combination equal the float32 reference."""

from __future__ import annotations

import pytest
import torch

from kernels.moe_down import moe_down
from kernels.moe_gate_up import moe_gate_up
from kernels.quant_format import QuantFormat
from kernels.quant_swiglu import quant_swiglu
from kernels.reference import quant_moe as reference
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from tests.kernels.activations import poisoned_activation, random_activation, relative_error
from tests.kernels.random_weights import random_weight

EPS = 1e-6
# the interpreter turns a loop's run-time bounds into Python numbers in a way that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
EXPERTS, TOP_K, FFN, HIDDEN = 5, 2, 32, 256


def _ids(num_tokens: int) -> torch.Tensor:
    return torch.full((num_tokens, TOP_K), -1, dtype=torch.int32)


Q4_K, Q5_K, Q8_0, F16, F32 = QuantFormat.Q4_K, QuantFormat.Q5_K, QuantFormat.Q8_0, QuantFormat.F16, QuantFormat.F32


@pytest.mark.parametrize("is_chosen", [False, True])
@pytest.mark.parametrize(("has_shared", "kind", "shared_kind"), [(False, Q4_K, None), (True, Q4_K, Q8_0),
                                                                 (True, F16, F32), (True, F32, QuantFormat.NVFP4)])
def test_first_half_of_the_chosen_experts(
    has_shared: bool, kind: QuantFormat, shared_kind: QuantFormat | None, is_chosen: bool
) -> None:
    x = random_activation(2, HIDDEN)
    logits = torch.randn(2, EXPERTS + has_shared)
    gate = random_weight(EXPERTS * FFN, HIDDEN, kind, seed=1)
    up = random_weight(EXPERTS * FFN, HIDDEN, kind, seed=2)
    shared = tuple(random_weight(FFN, HIDDEN, shared_kind, seed=s) for s in (3, 4)) if has_shared else None
    ids, _ = reference.quant_route(logits, TOP_K, has_shared)
    chosen = ids.int() if is_chosen else _ids(2)
    out = poisoned_activation(2 * (TOP_K + has_shared), FFN)
    seen = torch.full_like(logits, torch.nan) if is_chosen else logits
    moe_gate_up(x, seen, gate, up, shared, chosen, out, EPS, is_chosen=is_chosen)
    assert torch.equal(chosen.long(), ids)
    expected = reference.moe_gate_up(x, ids, gate, up, shared, EXPERTS, EPS)
    assert relative_error(dequantize_rows(out), dequantize_rows(expected)) < 2e-3
    assert relative_error(out.sums, expected.sums) < 2e-2


@pytest.mark.parametrize("is_weighed", [False, True])
@pytest.mark.parametrize(("has_shared", "kind", "shared_kind"), [(False, Q5_K, None), (True, Q5_K, Q8_0),
                                                                 (True, F16, F32), (True, F32, QuantFormat.NVFP4)])
def test_second_half_adds_to_the_residual_and_emits(
    has_shared: bool, kind: QuantFormat, shared_kind: QuantFormat | None, is_weighed: bool
) -> None:
    slots = TOP_K + has_shared
    h = quantize_rows(torch.randn(2 * slots, 256))
    logits = torch.randn(2, EXPERTS + has_shared)
    ids, weights = reference.quant_route(logits, TOP_K, has_shared)
    down = random_weight(EXPERTS * HIDDEN, 256, kind, seed=1)
    shared_down = random_weight(HIDDEN, 256, shared_kind, seed=2) if has_shared else None
    residual = torch.randn(2, HIDDEN)
    norm_weight = torch.rand(HIDDEN) + 0.5
    expected = reference.moe_down(h, ids, weights, down, shared_down, residual)
    out = poisoned_activation(2, HIDDEN)
    seen = torch.full_like(logits, torch.nan) if is_weighed else logits
    moe_down(h, ids.int(), seen, down, shared_down, residual, norm_weight, out, weights=weights if is_weighed else None)
    assert relative_error(residual, expected) < 1e-5
    emitted = quantize_rows(expected, norm_weight)
    assert relative_error(out.plain, emitted.plain) < 1e-5
    assert relative_error(out.square_sums, emitted.square_sums) < 1e-5
    assert relative_error(dequantize_rows(out), dequantize_rows(emitted)) < 2e-3


def test_equal_logits_choose_the_lower_ids() -> None:
    chosen = _ids(1)
    gate, up = (random_weight(EXPERTS * FFN, HIDDEN, QuantFormat.Q8_0, seed=s) for s in (1, 2))
    moe_gate_up(random_activation(1, HIDDEN), torch.zeros(1, EXPERTS), gate, up, None, chosen,
                poisoned_activation(TOP_K, FFN), EPS)
    assert chosen.tolist() == [[0, 1]]


@pytest.mark.parametrize(("num_tokens", "kind"), [(1, Q4_K), (2, Q4_K), (8, Q4_K), (3, F16), (6, QuantFormat.BF16)])
def test_dense_first_half(num_tokens: int, kind: QuantFormat) -> None:
    x = random_activation(num_tokens, HIDDEN)
    gate, up = (random_weight(64, HIDDEN, kind, seed=s) for s in (1, 2))
    out = poisoned_activation(num_tokens, 64)
    quant_swiglu(x, gate, up, out, EPS)
    expected = reference.swiglu(x, gate, up, EPS)
    assert relative_error(dequantize_rows(out), dequantize_rows(expected)) < 2e-3
