"""The check of whole steps follows a step through ties between experts, and through nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparkinfer.model.cuda.decode import DecodeInputs
from sparkinfer.model.cuda.weights import DecodeWeights, ExpertFFN
from tests.kernels import step_agreement
from tests.kernels.random_model import TINY_HYBRID, cloned, random_inputs, random_model
from tests.kernels.reference_step import Routing, reference_step
from tests.kernels.step_agreement import agreement

SHAPE = replace(TINY_HYBRID, num_layers=2, vocab=40, k_heads=0)
NUM_SEQS = 8


@pytest.fixture(scope="module")
def model() -> tuple[DecodeWeights, DecodeInputs]:
    torch.manual_seed(1)
    weights = random_model(SHAPE, "cpu")
    return weights, random_inputs(SHAPE, weights, NUM_SEQS, 5, "cpu")


def ranked(weights: DecodeWeights, inputs: DecodeInputs, banned: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the next layer's experts, best first, and the experts."""
    routing = Routing(banned)
    reference_step(replace(weights, layers=weights.layers[: len(banned) + 1]), cloned(inputs), routing=routing)
    return routing.logits[-1].sort(dim=1, descending=True)


def closest_skipped(weights: DecodeWeights, inputs: DecodeInputs) -> tuple[list[Tensor], float]:
    """The bans of a step in which the row whose choice is closest takes the runner-up in both layers; its gap."""
    banned: list[Tensor] = []
    gaps = []
    row = None
    for layer in weights.layers:
        assert isinstance(layer.ffn, ExpertFFN)
        logits, experts = ranked(weights, inputs, banned)
        gap = logits[:, layer.ffn.top_k - 1] - logits[:, layer.ffn.top_k]
        row = int(gap.argmin()) if row is None else row
        gaps.append(float(gap[row]))
        bans = torch.zeros_like(logits, dtype=torch.bool)
        bans[row, experts[row, layer.ffn.top_k - 1]] = True
        banned.append(bans)
    return banned, max(gaps)


def step_with(banned: list[Tensor]) -> Callable[[DecodeWeights, DecodeInputs], Tensor]:
    return lambda weights, inputs: reference_step(weights, inputs, routing=Routing(banned))


def test_the_reference_agrees_with_itself(model: tuple[DecodeWeights, DecodeInputs]) -> None:
    found = agreement(*model, step_with([]))
    assert (float(found.row_errors.max()), found.num_ties) == (0.0, 0)
    assert torch.equal(found.logits, reference_step(model[0], cloned(model[1])))


def test_other_choices_pass_among_ties_only(
    model: tuple[DecodeWeights, DecodeInputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    banned, gap = closest_skipped(*model)
    monkeypatch.setattr(step_agreement, "TIE", gap * 1.01)
    found = agreement(*model, step_with(banned))
    assert (float(found.row_errors.max()), found.num_ties) == (0.0, 2)
    monkeypatch.setattr(step_agreement, "TIE", 0.0)
    found = agreement(*model, step_with(banned))
    assert (found.row_errors > 1e-3).sum() == 1
    assert found.num_ties == 0


def test_a_spoiled_row_is_found(model: tuple[DecodeWeights, DecodeInputs]) -> None:
    def spoiled(weights: DecodeWeights, inputs: DecodeInputs) -> Tensor:
        logits = reference_step(weights, inputs)
        logits[3] *= 1.5 if len(weights.layers) == 1 else 1.0  # right again in the end
        logits[4, 0] = torch.nan
        return logits

    errors = agreement(*model, spoiled).row_errors
    assert float(errors[3]) == pytest.approx(0.5, rel=1e-3)
    assert float(errors[4]) == torch.inf
    assert float(errors[[0, 1, 2, 5, 6, 7]].max()) == 0.0
