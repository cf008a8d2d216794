"""Every architecture against transformers, whole and in pieces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sparkinfer.model.registry import Model
from tests.model.driver import run_chunks
from tests.model.tiny import ARCHITECTURES, golden

TOLERANCE = 1e-4  # largest seen 4e-5 (muse-glimmer, whose attention is sharp), others 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("num_tokens", [1, 7, 64, 300])
def test_prefill_agrees_with_transformers(
    architecture: str, num_tokens: int, tiny_model: Callable[[str], Model]
) -> None:
    expected = golden(architecture)
    logits = run_chunks(tiny_model(architecture), expected[f"tokens_{num_tokens}"].tolist(), num_tokens).numpy()
    np.testing.assert_allclose(logits[-1], expected[f"last_{num_tokens}"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(logits.argmax(-1), expected[f"argmax_{num_tokens}"])
    if num_tokens == 7:
        np.testing.assert_allclose(logits, expected["full_7"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("num_tokens", "chunk"), [(64, 1), (300, 7), (300, 64), (300, 130)])
def test_chunks_agree_with_transformers(
    architecture: str, num_tokens: int, chunk: int, tiny_model: Callable[[str], Model]
) -> None:
    expected = golden(architecture)
    tokens = expected[f"tokens_{num_tokens}"].tolist()
    logits = run_chunks(tiny_model(architecture), tokens, chunk, seed=chunk).numpy()
    np.testing.assert_allclose(logits[-1], expected[f"last_{num_tokens}"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(logits.argmax(-1), expected[f"argmax_{num_tokens}"])
