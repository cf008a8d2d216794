"""Prompts through full-width layers on the card against the same layers in plain float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ops.bench.gpu_prefill import make_batch
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.prefill import Prefill
from sparkinfer.model.cuda.prompt_ops import PromptOps
from tests.kernels.random_model import SHAPES, cloned, random_inputs, random_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel
]
DEVICE = torch.device("cuda")


@pytest.mark.parametrize("num_tokens", [70, 600])
def test_numbers_beyond_f16_between_the_halves(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights of these shapes make gate times up as large as 4e6; three layers of the delta rule, one of
    attention."""
    torch.manual_seed(num_tokens)
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = replace(SHAPES["27B"], vocab=8192)
    weights = random_model(shape, "cuda", num_layers=4)
    assert all(layer.ffn.half_factor < 1 for layer in weights.layers)
    inputs = random_inputs(shape, weights, 1, num_tokens, "cuda")
    batch = make_batch(num_tokens, 0, shape.vocab, inputs.block_tables)

    def streams() -> torch.Tensor:
        pools = cloned(inputs)
        with torch.inference_mode():
            prefill = Prefill(weights, DecodePools(16, pools.kv, pools.kv_scales, pools.conv, pools.state, ()), DEVICE)
            return prefill.run(batch)

    found = streams()
    plain = PromptOps.of(torch.device("cpu"))
    monkeypatch.setattr(PromptOps, "of", lambda device: plain)
    expected = streams()
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert bool((errors < 1e-2).all()), (float(errors.median()), float(errors.max()))
