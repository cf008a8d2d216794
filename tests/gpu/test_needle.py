"""A needle is found at every depth of long texts on the card, with an int8 cache as with a bf16 one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver, make_runner
from tests.model import needle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel
]
WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
LENGTHS = (2047, 2048, 2049, 4097)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
CHUNKS = (1, 512, 70, 1024, 63, 4096)
KEYS = [(depth, way) for depth in DEPTHS for way in ("whole", "chunks")]


def answers(path: Path, kv_dtype: torch.dtype) -> dict[tuple[int, float, str], torch.Tensor]:
    """(length, depth, way of the prompt) -> [len(needle) - 1, VOCAB] log-probabilities of tokens that it chose."""
    runner = make_runner(path, torch.device("cuda", 0), len(KEYS), num_blocks=2600, kv_dtype=kv_dtype)
    found = {}
    for length in LENGTHS:
        driver = RunnerDriver(runner, len(KEYS), seed=length)
        for key in KEYS:
            driver.add(key, needle.text(length, key[0]), WATCHED)
        for depth in DEPTHS:
            driver.step({(depth, "whole"): length})
        done = 0
        for size in CHUNKS:
            count = min(size, length - done)
            if count:
                driver.step({(depth, "chunks"): count for depth in DEPTHS})
                done += count
        for _ in needle.NEEDLE[2:]:
            driver.step(dict.fromkeys(KEYS, 0))
        for key in KEYS:
            assert driver.tokens[key][length:] == needle.NEEDLE[1:], (length, key)
            rows = driver.logprobs[key]
            found[length, *key] = torch.stack([rows[position] for position in sorted(rows)])
    runner.close()
    return found


def test_needle(tmp_path: Path) -> None:
    path = tmp_path / "needle.gguf"
    needle.write(path)
    expected, found = (answers(path, dtype) for dtype in (torch.bfloat16, torch.int8))
    assert expected.keys() == found.keys()
    for key, rows in expected.items():
        assert min(needle.least_lead(rows), needle.least_lead(found[key])) > needle.LEAD, key
        assert needle.divergence(rows, found[key]) < needle.MAX_DIVERGENCE, key
