"""Steps of 17 to 100 rows on the card: graphs of many rows against the float32 model on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kernels.reference.moe import route
from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver, disagreement, make_runner
from tests.model.driver import load, run_chunks
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
TIE = 0.02     # between logits of experts: below, rounding to f16 may choose another one, and another answer


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
    divergences, wrong = [], []
    for key in range(SIZES[-1]):
        for position, row in driver.logprobs[key].items():
            divergence, is_wrong = disagreement(path, driver.tokens[key], {position: row}, MARGIN)
            divergences.append(divergence)
            if is_wrong and _least_gap(path, driver.tokens[key], position) > TIE:
                wrong.append((key, position, divergence))
    assert sum(divergences) / len(divergences) < MAX_MEAN_KL
    assert not wrong
    runner.close()


def _least_gap(path: Path, tokens: list[int], position: int) -> float:
    """Between the logits of the last expert chosen for a position and of the first that was not, over all layers."""
    gaps = [math.inf]

    def recorded(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
        ranked = logits[position].sort(descending=True)[0]
        gaps.append(float(ranked[top_k - 1] - ranked[top_k]))
        return route(logits, top_k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkinfer.model.moe.route", recorded)
        run_chunks(load(path), tokens, len(tokens))
    return min(gaps)
