"""The embedded default model, in float32 and on the CPU kernels, against llama.cpp on the same weights in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kernels.cpu.dot import dot_instruction
from tests.model.driver import Driver, load, load_cpu
from tests.model.tiny import GOLDEN

CASES = {case["name"]: case for case in json.loads((GOLDEN / "smollm2.json").read_text())["cases"]}


@pytest.fixture(scope="module", params=["float32", "kernels"])
def logprobs(embedded_model: Path, request: pytest.FixtureRequest) -> dict[str, torch.Tensor]:
    """Log-probabilities [num_tokens, vocab_size] of each case, fed llama.cpp's tokens: prompts alone, then all decode
    together."""
    if request.param == "kernels" and dot_instruction() is None:
        pytest.skip("this CPU has no instruction that the kernels need")
    model = load(embedded_model) if request.param == "float32" else load_cpu(embedded_model)
    driver = Driver(model, num_blocks=160)
    logits = {name: [driver.prefill(name, case["prompt_ids"])] for name, case in CASES.items()}
    for i in range(max(len(case["tokens"]) for case in CASES.values()) - 1):
        work = {name: case["tokens"][i : i + 1] for name, case in CASES.items() if i + 1 < len(case["tokens"])}
        for name, rows in driver.step(work).items():
            logits[name].append(rows)
    return {name: torch.log_softmax(torch.cat(rows), dim=-1) for name, rows in logits.items()}


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_agree(name: str, logprobs: dict[str, torch.Tensor]) -> None:
    best, second = logprobs[name].topk(2).values.unbind(-1)
    is_clear = best - second > 0.1
    assert is_clear.float().mean() > 0.5
    assert torch.equal(logprobs[name].argmax(-1)[is_clear], torch.tensor(CASES[name]["tokens"])[is_clear])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["top"] is not None])
def test_probabilities_agree(name: str, logprobs: dict[str, torch.Tensor]) -> None:
    top = torch.tensor(CASES[name]["top"])  # [num_tokens, 10, (id, logprob)]; float32 holds every id exactly
    expected, got = top[..., 1], logprobs[name].gather(1, top[..., 0].long())
    divergence = (expected.exp() * (expected - got)).sum(-1)
    assert divergence.mean() < 1e-3
    assert (expected - got).abs().max() < 0.05
