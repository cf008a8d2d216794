"""The embedded default model against llama.cpp on the same weights in float32."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from sparkinfer.model.registry import Model
from tests.model.driver import Driver, load
from tests.model.tiny import GOLDEN

CASES = json.loads((GOLDEN / "smollm2.json").read_text())["cases"]
load_once = cache(load)


@pytest.fixture
def model(embedded_model: Path) -> Model:
    return load_once(embedded_model)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_greedy_tokens_and_probabilities(case: dict, model: Model) -> None:
    """Prefill the prompt, then force llama.cpp's tokens one decode step at a time."""
    driver = Driver(model, num_blocks=100)
    logits = [driver.prefill("only", case["prompt_ids"])]
    logits += [driver.step({"only": [token]})["only"] for token in case["tokens"][:-1]]
    logprobs = torch.log_softmax(torch.cat(logits), dim=-1)
    best, second = logprobs.topk(2).values.unbind(-1)
    is_clear = best - second > 0.1
    assert torch.equal(logprobs.argmax(-1)[is_clear], torch.tensor(case["tokens"])[is_clear])
    assert is_clear.float().mean() > 0.5
    if case["top"] is not None:
        ids = torch.tensor([[token for token, _ in top] for top in case["top"]])
        expected = torch.tensor([[logprob for _, logprob in top] for top in case["top"]])
        divergence = (expected.exp() * (expected - logprobs.gather(1, ids))).sum(-1)
        assert divergence.mean() < 1e-3
        assert (expected - logprobs.gather(1, ids)).abs().max() < 0.05
