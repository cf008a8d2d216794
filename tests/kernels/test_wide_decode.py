"""A whole step of 16 rows under the interpreter equals the float32 composition; the Gluon products are emulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.quant_format import QuantFormat
from kernels.rope_store_kv import HeadShape
from sparkinfer.model.cuda.decode import DecodeStep
from sparkinfer.model.cuda.wide_decode import WideDecodeStep, decode_step, takes
from tests.kernels.activations import relative_error
from tests.kernels.emulated import emulate
from tests.kernels.random_model import (
    TINY_DENSE,
    TINY_HYBRID,
    ModelShape,
    cloned,
    random_inputs,
    random_model,
    settled_states,
)
from tests.kernels.reference_step import reference_step

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's loop bounds
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),  # silu of a very negative number
]
HEADS = HeadShape(2, 1, 64, True)
EXPERTS = replace(TINY_HYBRID, num_layers=1, ffn=128, vocab=40, heads=HEADS, k_heads=0)
HYBRID = replace(EXPERTS, k_heads=1, v_heads=2, d=64)
DENSE = replace(TINY_DENSE, num_layers=1, heads=HeadShape(4, 2, 64, False))
SHAPES = {"experts": EXPERTS, "no shared expert": replace(EXPERTS, has_shared=False), "hybrid": HYBRID, "dense": DENSE}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_step_follows_the_reference(shape: ModelShape, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr("kernels.paged_decode.MANY_SEQS_SPLITS", 2)
    torch.manual_seed(3)
    weights = random_model(shape, "cpu")
    inputs = random_inputs(shape, weights, 16, 5, "cpu")
    caches = tuple(pair and (pair[0].float(), pair[1].float()) for pair in inputs.kv)
    inputs = replace(inputs, kv=caches)  # the interpreter cuts what it stores as bf16 where a card rounds
    expected_inputs = cloned(inputs)
    expected = reference_step(weights, expected_inputs)
    step = decode_step(weights, 16, torch.device("cpu"), pdl=False)
    assert isinstance(step, WideDecodeStep)
    logits = step.run(inputs)
    errors = (logits - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.median() < 1e-3
    assert errors.max() < 5e-3
    assert torch.equal(inputs.input_ids, logits.argmax(-1))
    for actual, wanted in zip(settled_states(inputs), settled_states(expected_inputs), strict=True):
        assert relative_error(actual, wanted) < 1e-2


def test_models_that_are_not_taken() -> None:
    weights = random_model(DENSE, "cpu")
    assert takes(weights, 16)
    assert not takes(weights, 24)
    assert type(decode_step(weights, 8, torch.device("cpu"))) is DecodeStep
    assert not takes(random_model(replace(DENSE, gate_up=QuantFormat.F16), "cpu"), 16)
    assert not takes(random_model(replace(EXPERTS, ffn=32), "cpu"), 16)
    assert not takes(random_model(replace(DENSE, down=QuantFormat.F32), "cpu"), 16)
