"""A whole decode step of tiny models, kernel by kernel under the interpreter, equals the float32 composition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparkinfer.model.cuda.decode import DecodeStep
from sparkinfer.model.cuda.weights import DecodeWeights, Ends
from tests.kernels.activations import relative_error
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


@pytest.mark.parametrize(
    ("shape", "num_seqs", "context_len", "is_int8", "chosen_from"),
    [(TINY_HYBRID, 1, 20, False, 2), (TINY_HYBRID, 2, 3, False, 2), (TINY_DENSE, 1, 5, True, 2)],
)
def test_step_follows_the_reference(
    shape: ModelShape, num_seqs: int, context_len: int, is_int8: bool, chosen_from: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.few_experts.CHOSEN_FROM", chosen_from)
    torch.manual_seed(1)
    weights = random_model(shape, "cpu")
    inputs = random_inputs(shape, weights, num_seqs, context_len, "cpu", is_int8)
    expected_inputs = cloned(inputs)
    expected = reference_step(weights, expected_inputs)
    logits = DecodeStep(weights, num_seqs, torch.device("cpu"), pdl=False).run(inputs)
    assert relative_error(logits, expected) < 1e-2
    assert torch.equal(inputs.input_ids, logits.argmax(-1))
    for actual, wanted in zip(settled_states(inputs), settled_states(expected_inputs), strict=True):
        assert relative_error(actual, wanted) < 1e-2


def test_rows_on_tensor_cores() -> None:
    """Four rows leave f16 numbers for one another's products, through attention and a dense half."""
    torch.manual_seed(3)
    shape = replace(TINY_DENSE, num_layers=1, vocab=32)
    weights = random_model(shape, "cpu")
    inputs = random_inputs(shape, weights, 4, 5, "cpu")
    expected = reference_step(weights, cloned(inputs))
    logits = DecodeStep(weights, 4, torch.device("cpu"), pdl=False).run(inputs)
    assert relative_error(logits, expected) < 1e-2


def _sandwiched(weights: DecodeWeights) -> DecodeWeights:
    """The same with norms around each half, GELU, a window in the first layer, scaled scores, capped logits."""
    layers = []
    for index, layer in enumerate(weights.layers):
        norms = tuple(torch.rand(weights.hidden_size) + 0.5 for _ in range(2))
        mixer = replace(layer.mixer, window=7 * (index == 0), scale=0.3, inv_freq=weights.inv_freq * (index == 0))
        layers.append(replace(layer, mixer=mixer, ffn=replace(layer.ffn, is_gelu=True), post_norms=norms))
    ends = Ends(embedding_scale=12.0, logit_scale=0.5, logit_cap=30.0)
    return replace(weights, layers=tuple(layers), post_eps=1e-5, ends=ends)


def test_norms_around_each_half() -> None:
    torch.manual_seed(2)
    weights = _sandwiched(random_model(TINY_DENSE, "cpu"))
    inputs = random_inputs(TINY_DENSE, weights, 1, 20, "cpu")
    expected = reference_step(weights, cloned(inputs))
    logits = DecodeStep(weights, 1, torch.device("cpu"), pdl=False).run(inputs)
    assert relative_error(logits, expected) < 1e-2
    assert torch.equal(inputs.input_ids, logits.argmax(-1))
