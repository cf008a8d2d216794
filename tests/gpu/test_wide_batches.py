"""Steps of 17 to 100 rows on the card: graphs of many rows against the float32 model on the CPU."""

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
SIZES = (17, 33, 64, 100)  # rows of the steps
MAX_MEAN_KL = 1e-3
MARGIN = 0.05  # nat; a best token that wins by more must stay the best


def _path(name: str, folder: Path) -> Path:
    if not name.startswith("tiny-"):
        return tiny_gguf(name, folder)
    synthetic_gguf = pytest.importorskip("ops.bench.synthetic_gguf")
    written = folder / f"{name}.gguf"
    synthetic_gguf.write(synthetic_gguf.SHAPES[name], written)
    return written


@pytest.mark.parametrize("name", ["tiny-hybrid-moe", "tiny-llama", "qwen3", "qwen35moe"])
def test_steps_of_many_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkinfer.engine.cuda_graph.bucket_sizes", lambda num_seqs, largest: [32, 64, 128])
    path = _path(name, tmp_path)
    runner = make_runner(path, torch.device("cuda", 0), SIZES[-1], num_blocks=512)
    driver = RunnerDriver(runner, SIZES[-1])
    tokens = golden("qwen3")["tokens_300"].tolist()
    for key in range(SIZES[-1]):
        driver.add(key, tokens[2 * key : 2 * key + 20 + key % 7], WATCHED)
    driver.step({key: 20 + key % 7 for key in range(SIZES[-1])})
    for size in (*SIZES, *SIZES):
        driver.step(dict.fromkeys(range(size), 0))
    found = [disagreement(path, driver.tokens[key], driver.logprobs[key], MARGIN) for key in range(SIZES[-1])]
    counts = [len(driver.logprobs[key]) for key in range(SIZES[-1])]
    mean_kl = sum(kl * count for (kl, _), count in zip(found, counts, strict=True)) / sum(counts)
    assert mean_kl < MAX_MEAN_KL, (mean_kl, found)
    assert sum(wrong for _, wrong in found) == 0, found
    runner.close()
