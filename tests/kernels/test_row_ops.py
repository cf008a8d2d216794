"""Embedding rows, first-layer quantisation and the greedy choice equal their references."""

from __future__ import annotations

import pytest
import torch

from kernels.argmax import argmax
from kernels.quant_embedding import quant_embedding
from kernels.quant_format import QuantFormat
from kernels.quantize_rows import quantize_rows
from kernels.reference import argmax as argmax_reference
from kernels.reference import quant_gemv as reference
from kernels.reference.quant_weight import dequantize
from tests.kernels.activations import poisoned_activation, relative_error
from tests.kernels.random_weights import random_weight


@pytest.mark.parametrize("kind", list(QuantFormat))
def test_embedding_rows(kind: QuantFormat) -> None:
    weight = random_weight(7, 256, kind, seed=5)
    ids = torch.tensor([6, 0, 3])
    out = torch.full((3, 256), torch.nan)
    quant_embedding(ids, weight, out)
    assert relative_error(out, dequantize(weight)[ids]) < 1e-6


def test_first_layers_input() -> None:
    x, weight = torch.randn(2, 96), torch.rand(96) + 0.5
    out = poisoned_activation(2, 96)
    quantize_rows(x, weight, out)
    expected = reference.quantize_rows(x, weight)
    assert torch.equal(out.plain, expected.plain)
    assert relative_error(out.square_sums, expected.square_sums) < 1e-6
    assert (out.values.int() - expected.values.int()).abs().max() <= 1
    assert relative_error(out.scales, expected.scales) < 1e-6


def test_greedy_choice_takes_the_lowest_of_equals() -> None:
    logits = torch.randn(3, 5000)
    logits[1, [77, 4100]] = 9.0
    logits[2] = -5.0
    ids = torch.full((3,), -1)
    argmax(logits, ids)
    assert torch.equal(ids, argmax_reference.argmax(logits))
    assert ids[1] == 77
