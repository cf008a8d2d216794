"""Long texts with int8 keys and values on the card: hardly further from the float32 model than with bf16 ones."""

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
    pytest.mark.timeout(400),  # the first run compiles every kernel
]
WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
LENGTHS = (2047, 2048, 2049, 4096, 4097)
FORCED = 16


def divergences(path: Path, kv_dtype: torch.dtype, text: list[int]) -> dict[int, float]:
    """Mean KL divergence over FORCED tokens of the text behind its first `length` ones, by length."""
    runner = make_runner(path, torch.device("cuda", 0), 1, num_blocks=300, kv_dtype=kv_dtype)
    found = {}
    for length in LENGTHS:
        driver = RunnerDriver(runner, 1)
        driver.add(length, text[:length], WATCHED)
        driver.step({length: length})
        for token in text[length : length + FORCED]:
            driver.tokens[length][-1] = token  # in place of the one that it has chosen
            driver.step({length: 1})
        found[length], _ = disagreement(path, driver.tokens[length], driver.logprobs[length])
    runner.close()
    return found


@pytest.mark.parametrize("architecture", ["llama", "qwen35", "gemma3"])
def test_int8_stays_near_bf16(architecture: str, tmp_path: Path) -> None:
    tokens = golden("qwen3")["tokens_300"].tolist()
    text = [tokens[(i * i + 7 * i) % 300] for i in range(max(LENGTHS) + FORCED)]
    path = tiny_gguf(architecture, tmp_path)
    expected, found = (divergences(path, dtype, text) for dtype in (torch.bfloat16, torch.int8))
    for length in LENGTHS:
        assert found[length] < expected[length] + 1e-3, (length, found, expected)
