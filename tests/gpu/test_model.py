"""The reference forward on an accelerator: the same numbers as on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.driver import load, run_chunks
from tests.model.tiny import ARCHITECTURES, golden, tiny_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_forward_agrees_with_transformers(architecture: str, tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    model, expected = load(tiny_gguf(architecture, tmp_path), device), golden(architecture)
    tokens = expected["tokens_300"].tolist()
    for chunk in (300, 64):
        logits = run_chunks(model, tokens, chunk, device=device).cpu().numpy()
        np.testing.assert_allclose(logits[-1], expected["last_300"], rtol=0, atol=1e-3)
        np.testing.assert_array_equal(logits.argmax(-1), expected["argmax_300"])
