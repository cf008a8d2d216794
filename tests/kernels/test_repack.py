"""Repacked planes hold exactly the values that gguf-py reads from the same blocks, in at most 6 % more bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.reference.quant_weight import dequantize
from kernels.repack import concat_rows, repack
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
