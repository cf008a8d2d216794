"""Masked logits equal what torch's operations make of them, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.mask_logits import BLOCK, mask_logits
from sparkinfer.engine.token_mask import MaskBatch, apply_masks


@pytest.mark.parametrize("num_cols", [1, 31, 32, 33, BLOCK, BLOCK + 45])
def test_as_torch_does(num_cols: int) -> None:
    rng = np.random.default_rng(num_cols)
    logits = torch.from_numpy(rng.normal(size=(5, num_cols)).astype(np.float32))
    logits[:, 0] = float("nan")
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, (3, -(-num_cols // 32) + 1)).astype(np.int32))
    rows = torch.tensor([4, 0, 3])
    expected, found = logits.clone(), logits.clone()
    apply_masks(expected, MaskBatch(rows, words[:, : -(-num_cols // 32)]))
    mask_logits(found, rows, words)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(found[1:3].view(torch.int32), logits[1:3].view(torch.int32))
