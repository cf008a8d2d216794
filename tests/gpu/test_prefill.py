"""Prompts of every length on the card, in one piece and in chunks, against the float32 model on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver, disagreement, make_runner
from tests.model.tiny import golden, tiny_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),
]

WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
MAX_MEAN_KL = 1e-3
MARGIN = 0.05  # nat; a best token that wins by more must stay the best
LENGTHS = (1, 15, 16, 17, 255, 1000, 4097, 16384)
NUM_SEQS = 8


@pytest.fixture(scope="module", params=["qwen35", "qwen35moe", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.int8], ids=["bf16", "int8"])
def runner(path: Path, request: pytest.FixtureRequest) -> Iterator[CudaModelRunner]:
    runner = make_runner(path, torch.device("cuda", 0), NUM_SEQS, num_blocks=2100, kv_dtype=request.param)
    yield runner
    runner.close()


def prompt(length: int) -> list[int]:
    tokens = golden("qwen3")["tokens_300"].tolist()
    return [tokens[(i * i + 7 * i) % 300] for i in range(length)]


def check(driver: RunnerDriver, path: Path, key: object) -> None:
    mean_kl, num_wrong = disagreement(path, driver.tokens[key], driver.logprobs[key], MARGIN)
    assert (mean_kl < MAX_MEAN_KL, num_wrong) == (True, 0), (key, mean_kl, num_wrong)


@pytest.mark.parametrize("length", LENGTHS)
def test_one_piece_and_chunks(
    length: int, path: Path, runner: CudaModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkinfer.engine.cuda_forward.STEPWISE_TOKENS", 0)
    driver = RunnerDriver(runner, NUM_SEQS, seed=length)
    for key in ("whole", "chunks"):
        driver.add(key, prompt(length), WATCHED)
    driver.step({"whole": length})
    done = 0
    for size in (1, 70, 512, 63, 2048, 3000, 16384):
        count = min(size, length - done)
        if count:
            driver.step({"chunks": count, "whole": 0})
            done += count
    for _ in range(3):
        driver.step({"whole": 0, "chunks": 0})
    for key in ("whole", "chunks"):
        check(driver, path, key)


@pytest.mark.parametrize("cached", [64, 2048])
def test_behind_a_cached_prefix(cached: int, path: Path, runner: CudaModelRunner) -> None:
    has_state = path.stem != "gemma3"
    driver = RunnerDriver(runner, NUM_SEQS)
    driver.add("first", prompt(cached + 300), WATCHED)
    driver.step({"first": cached})
    driver.launch({"first": 300}, (("first", 0, False),) if has_state else ())
    driver.collect()
    driver.fork("second", "first", cached)
    driver.launch({"second": 301, "first": 0}, (("second", 0, True),) if has_state else ())
    driver.collect()
    driver.step({"second": 0, "first": 0})
    for key in ("first", "second"):
        check(driver, path, key)


def test_many_at_once(path: Path, runner: CudaModelRunner) -> None:
    """Chunks of several sequences, first ones and later ones, lie end to end in one step beside decodes."""
    driver = RunnerDriver(runner, NUM_SEQS)
    lengths = {"a": 300, "b": 129, "c": 64, "d": 700, "e": 33}
    for key, length in lengths.items():
        driver.add(key, prompt(length), WATCHED)
    driver.step({"a": 128, "b": 65, "e": 33})
    driver.step({"e": 0, "a": 172, "c": 64, "d": 64, "b": 64})
    driver.step({"e": 0, "d": 636, "a": 0, "c": 0})
    driver.step(dict.fromkeys(lengths, 0))
    for key in lengths:
        check(driver, path, key)
