"""Repacked planes hold exactly the values that gguf-py reads from the same blocks, in at most 6 % more bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from kernels.repack import concat_rows, repack, select_rows
from tests.kernels.random_weights import random_blocks, random_weight


@pytest.mark.parametrize("kind", list(QuantFormat))
def test_repacked_values_equal_ggufs_dequantisation(kind: QuantFormat) -> None:
    raw = random_blocks(5, 768, kind, seed=int(kind))
    weight = repack(raw, kind)
    expected = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType(int(kind)))
    np.testing.assert_array_equal(dequantize(weight).numpy(), expected)
    assert weight.num_bytes <= 1.06 * raw.numel()


def test_a_row_of_broken_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="35 bytes"):
        repack(torch.zeros(2, 35, dtype=torch.uint8), QuantFormat.Q8_0)


@pytest.mark.parametrize("kind", [QuantFormat.Q8_0, QuantFormat.Q5_K])
def test_joined_rows_keep_their_values(kind: QuantFormat) -> None:
    parts = [random_weight(rows, 512, kind, seed=rows) for rows in (3, 1)]
    joined = concat_rows(parts)
    assert torch.equal(dequantize(joined), torch.cat([dequantize(part) for part in parts]))
    assert joined.num_rows == 4


LARGEST_QUANT = {  # 8 bits, a table's 127, twice the values of E2M1, 4 to 6 bits
    QuantFormat.Q8_0: 128, QuantFormat.Q6_K: 32, QuantFormat.IQ4_NL: 127, QuantFormat.IQ4_XS: 127,
    QuantFormat.MXFP4: 12, QuantFormat.NVFP4: 12, QuantFormat.Q4_0: 8, QuantFormat.Q5_0: 16, QuantFormat.Q4_1: 15,
    QuantFormat.Q5_1: 31, QuantFormat.Q4_K: 15, QuantFormat.Q5_K: 31,
}


@pytest.mark.parametrize("kind", LARGEST_QUANT)
def test_exponents_keep_scales_within_f16(kind: QuantFormat) -> None:
    """And near its upper end: the largest weight is at least an eighth of what the largest possible scale gives."""
    weight = random_weight(64, 1024, kind)
    weights = dequantize(weight)
    if kind in (QuantFormat.Q4_K, QuantFormat.Q5_K, QuantFormat.Q4_1, QuantFormat.Q5_1):
        blocks = weights.unflatten(1, (-1, 32))
        weights = blocks - blocks.amin(dim=2, keepdim=True)  # what is added to scaled quants aside
    largest = float(weights.abs().max()) / LARGEST_QUANT[kind] * 2.0**weight.exponent
    assert 65504 / 8 < largest <= 65504


def test_exponents_of_joined_and_of_selected_rows() -> None:
    large, small, zero = (random_weight(8, 512, QuantFormat.Q6_K, seed=seed) for seed in range(3))
    raw = random_blocks(8, 512, QuantFormat.Q6_K).unflatten(1, (-1, 210))
    raw[..., 208:] = (raw[..., 208:].contiguous().view(torch.float16) / 64).view(torch.uint8)
    small = repack(raw.flatten(1), QuantFormat.Q6_K)
    raw[..., 208:] = 0
    zero = repack(raw.flatten(1), QuantFormat.Q6_K)
    assert small.exponent == large.exponent + 6
    assert concat_rows([small, large, zero]).exponent == large.exponent
    assert select_rows(small, slice(2, 5)).exponent == small.exponent
    raw[3, 0, 208:] = 255  # a number that is none
    assert repack(raw.flatten(1), QuantFormat.Q6_K).exponent == 0
