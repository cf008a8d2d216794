"""Models with windows, norms around each half, GELU, plain f32 matrices or experts of two widths, on the card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver, disagreement, make_runner
from tests.model.tiny import golden, tiny_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel for every batch size
]
WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
NUM_SEQS = 5


@pytest.mark.parametrize("architecture", ["gemma3", "muse-glimmer", "llama", "qwen35moe"])
def test_chunks_and_batches(architecture: str, tmp_path: Path) -> None:
    path = tiny_gguf(architecture, tmp_path)
    runner = make_runner(path, torch.device("cuda", 0), NUM_SEQS, num_blocks=128)
    driver = RunnerDriver(runner, NUM_SEQS)
    tokens = golden("qwen3")["tokens_300"].tolist()
    for key in range(NUM_SEQS):
        driver.add(key, tokens[20 * key : 150 + 25 * key], WATCHED)
    driver.step({0: 100, 1: 155})
    driver.step({0: 50, 1: 0, 2: 160, 3: 165})
    driver.step({0: 0, 1: 0, 2: 0, 3: 0, 4: 170})
    for count in (1, 2, 5, 5):
        driver.step(dict.fromkeys(range(count), 0))
    for key in range(NUM_SEQS):
        mean_kl, num_wrong = disagreement(path, driver.tokens[key], driver.logprobs[key])
        assert mean_kl < 1e-3, (key, mean_kl)
        assert num_wrong == 0, key
    runner.close()
