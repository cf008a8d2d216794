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
def test_powers_keep_scales_within_f16(kind: QuantFormat) -> None:
    """And near its upper end: a row's largest weight is at least a 16th of what the largest possible scale gives."""
    weight = random_weight(64, 1024, kind)
    weights = dequantize(weight)
    if kind in (QuantFormat.Q4_K, QuantFormat.Q5_K, QuantFormat.Q4_1, QuantFormat.Q5_1):
        blocks = weights.unflatten(1, (-1, 32))
        weights = (blocks - blocks.amin(dim=2, keepdim=True)).flatten(1)  # what is added to scaled quants aside
    largest = weights.abs().amax(dim=1) / LARGEST_QUANT[kind] * weight.powers
    assert largest.max() <= 65504
    assert largest.min() > 65504 / 16


def test_powers_of_rows_that_are_small_zero_or_broken() -> None:
    raw = random_blocks(4, 512, QuantFormat.Q6_K).unflatten(1, (-1, 210))
    usual = repack(raw.flatten(1), QuantFormat.Q6_K).powers
    raw[1, :, 208:] = (raw[1, :, 208:].contiguous().view(torch.float16) / 16).view(torch.uint8)
    raw[2, :, 208:] = 0
    raw[3, 0, 208:] = 255  # a number that is none
    weight = repack(raw.flatten(1), QuantFormat.Q6_K)
    assert weight.powers.tolist() == [float(usual[0]), 16 * float(usual[1]), 2.0**27, 1.0]
    assert concat_rows([weight, weight]).powers.tolist() == 2 * weight.powers.tolist()
    assert select_rows(weight, slice(1, 3)).powers.tolist() == weight.powers[1:3].tolist()
