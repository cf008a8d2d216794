"""Prompts through full-width layers on the card against the same layers in plain float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.reference.fp8_products import fp8_products
from kernels.reference.prompt_rows import gate_up
from ops.bench.gpu_prefill import make_batch
from sparkinfer.engine.device import FP8_CAPABILITY
from sparkinfer.model.cuda import prompt_products
from sparkinfer.model.cuda.decode import DecodeInputs
from sparkinfer.model.cuda.pools import DecodePools
from sparkinfer.model.cuda.prefill import Prefill, PrefillBatch
from sparkinfer.model.cuda.prompt_ops import PromptOps
from sparkinfer.model.cuda.weights import DecodeWeights
from tests.kernels.random_model import SHAPES, cloned, random_inputs, random_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel
]
DEVICE = torch.device("cuda")


def residual_stream(weights: DecodeWeights, inputs: DecodeInputs, batch: PrefillBatch) -> torch.Tensor:
    pools = cloned(inputs)
    with torch.inference_mode():
        kept = DecodePools(16, pools.kv, pools.kv_scales, pools.conv, pools.state, pools.held, ())
        return Prefill(weights, kept, DEVICE).run(batch)


def plain_halves(x: torch.Tensor, row_gate: torch.Tensor | None, is_gelu: bool, factor: float) -> torch.Tensor:
    out = torch.empty(x.shape[0], x.shape[1] // 2, device=x.device)
    gate_up(x, row_gate, is_gelu, out, factor)
    return out


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != FP8_CAPABILITY,
                    reason="needs FP8 products with scales of blocks")
@pytest.mark.parametrize("num_tokens", [71, 600])
def test_e4m3_products(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bits of mantissa move a residual stream as far as plain torch says that they do. By the same way they do
    not: what differs in the last bit of an f32 is rounded to another e4m3 number here and there."""
    torch.manual_seed(num_tokens)
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = replace(SHAPES["27B"], vocab=8192)
    weights = random_model(shape, "cuda", num_layers=4)
    inputs = random_inputs(shape, weights, 1, num_tokens, "cuda")
    batch = make_batch(num_tokens, 0, shape.vocab, inputs.block_tables)

    def error(stream: torch.Tensor) -> float:
        return float(((stream - exact).norm(dim=1) / exact.norm(dim=1)).median())

    exact = residual_stream(weights, inputs, batch)
    in_fp8 = replace(weights, fp8_prompts=True)
    found = error(residual_stream(in_fp8, inputs, batch))
    monkeypatch.setattr(prompt_products, "quantize_rows", lambda x: x)
    monkeypatch.setattr(prompt_products, "gate_up_rows", plain_halves)
    monkeypatch.setattr(prompt_products, "fp8_products", lambda x, some, dtype=None: fp8_products(x, some))
    expected = error(residual_stream(in_fp8, inputs, batch))
    assert 0.01 < expected < 0.3
    assert 0.7 < found / expected < 1.4


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

    found = residual_stream(weights, inputs, batch)
    plain = PromptOps.of(torch.device("cpu"))
    monkeypatch.setattr(PromptOps, "of", lambda device: plain)
    expected = residual_stream(weights, inputs, batch)
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert bool((errors < 1e-2).all()), (float(errors.median()), float(errors.max()))
