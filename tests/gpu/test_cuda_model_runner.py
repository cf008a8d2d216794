"""The CUDA runner on the card: kernels, graphs and prefill against the float32 model on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver, disagreement, make_runner
from tests.engine.cuda_scenarios import (
    GREEDY,
    MAX_MEAN_KL,
    WATCHED,
    prompt,
    resume_from_snapshot,
    texts_in_flight,
    use_slots_again,
)
from tests.model.tiny import tiny_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel for every batch size
]

NUM_SEQS = 16
MARGIN = 0.05  # nat; a best token that wins by more must stay the best
MODELS = ("qwen2", "qwen3", "qwen3moe", "qwen35", "tiny-llama", "tiny-hybrid-moe")


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    if not request.param.startswith("tiny-"):
        return tiny_gguf(request.param, folder)
    synthetic_gguf = pytest.importorskip("ops.bench.synthetic_gguf")
    written = folder / f"{request.param}.gguf"
    synthetic_gguf.write(synthetic_gguf.SHAPES[request.param], written)
    return written


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.int8], ids=["bf16", "int8"])
def runner(path: Path, request: pytest.FixtureRequest) -> Iterator[CudaModelRunner]:
    runner = make_runner(path, torch.device("cuda", 0), NUM_SEQS, num_blocks=512, kv_dtype=request.param)
    yield runner
    runner.close()


def check(driver: RunnerDriver, path: Path, keys: list[object]) -> None:
    """Mean KL over all rows, and no other best token where the reference is clear."""
    found = [disagreement(path, driver.tokens[key], driver.logprobs[key], MARGIN) for key in keys]
    counts = [len(driver.logprobs[key]) for key in keys]
    mean_kl = sum(kl * count for (kl, _), count in zip(found, counts)) / sum(counts)
    num_wrong = sum(wrong for _, wrong in found)
    assert mean_kl < MAX_MEAN_KL, (mean_kl, found)
    assert num_wrong == 0, found


@pytest.mark.parametrize("stepwise_tokens", [0, 16])
def test_chunks_and_decode_steps_mix(
    stepwise_tokens: int, path: Path, runner: CudaModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkinfer.engine.cuda_forward.STEPWISE_TOKENS", stepwise_tokens)
    driver = RunnerDriver(runner, NUM_SEQS)
    driver.add("long", prompt(0, 430), WATCHED)
    driver.add("short", prompt(60, 2), WATCHED)
    driver.add("one", prompt(80, 1), WATCHED)
    driver.step({"long": 3, "short": 2})
    driver.step({"short": 0, "long": 130, "one": 1})
    driver.step({"long": 1, "one": 0, "short": 0})
    driver.step({"long": 296, "one": 0, "short": 0})
    for _ in range(4):
        driver.step({"one": 0, "long": 0, "short": 0})
    check(driver, path, ["long", "short", "one"])


def test_batches_of_every_size(path: Path, runner: CudaModelRunner) -> None:
    driver = RunnerDriver(runner, NUM_SEQS, seed=2)
    for key in range(NUM_SEQS):
        driver.add(key, prompt(17 * key, 9 + 5 * key), WATCHED)
        driver.step({key: 9 + 5 * key, **dict.fromkeys(range(key), 0)})
    driver.step(dict.fromkeys(range(NUM_SEQS), 0))
    check(driver, path, list(range(NUM_SEQS)))


def test_slots_and_blocks_are_used_again(path: Path, runner: CudaModelRunner) -> None:
    driver = RunnerDriver(runner, NUM_SEQS)
    use_slots_again(driver, 60, lambda turn: check(driver, path, [turn]))


def test_steps_may_be_in_flight_before_their_tokens_are_known(path: Path, runner: CudaModelRunner) -> None:
    watched, greedy = texts_in_flight(runner, NUM_SEQS, num_seqs=5, num_steps=20)
    assert watched == greedy


def test_state_comes_back_from_a_snapshot(path: Path, runner: CudaModelRunner) -> None:
    driver = RunnerDriver(runner, NUM_SEQS)
    resume_from_snapshot(driver, 64, 70, path.stem in ("qwen35", "tiny-hybrid-moe"))
    check(driver, path, ["first", "second"])


def test_draws_and_penalties_follow_graphs(path: Path, runner: CudaModelRunner) -> None:
    """The same seed draws the same tokens alone and beside others, whatever they ask for."""
    drawn = SamplingParams(max_tokens=64, temperature=1.0, top_p=0.9, top_k=40, presence_penalty=0.5, seed=5)
    texts = []
    for others in (0, 3):
        driver = RunnerDriver(runner, NUM_SEQS, seed=others)
        driver.add("drawn", prompt(3, 12), drawn)
        for key in range(others):
            driver.add(key, prompt(30 * key, 5 + key), (GREEDY, WATCHED, GREEDY)[key])
        driver.step({"drawn": 12, **{key: 5 + key for key in range(others)}})
        for _ in range(6):
            driver.launch({"drawn": 0, **dict.fromkeys(range(others), 0)})
        for _ in range(6):
            driver.collect()
        texts.append(driver.tokens["drawn"])
    assert len(set(texts[0][12:])) > 1
    assert texts[0] == texts[1]
