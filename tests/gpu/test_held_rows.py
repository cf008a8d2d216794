"""Constrained sequences on the card: whatever comes late, ends or jumps meanwhile, each gets its tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from tests.engine.cuda_driver import make_runner
from tests.engine.held_rows import TextWorker, cuda_answers, wishes
from tests.model.tiny import tiny_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles the kernels
]

VOCAB_SIZE = 1024
WISHES = wishes(16, VOCAB_SIZE, 40, seed=9)


@pytest.fixture(scope="module", params=["qwen35", "qwen3moe"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaModelRunner]:
    """Deterministic: company must not change a bit."""
    path = tiny_gguf(request.param, tmp_path_factory.mktemp("models"))
    runner = make_runner(path, torch.device("cuda", 0), 8, num_blocks=128, is_deterministic=True)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def alone(runner: CudaModelRunner) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, wish in enumerate(WISHES):
        found |= cuda_answers(runner, TextWorker(VOCAB_SIZE), [wish], first=number)
    assert sum(map(len, found.values())) > 100
    return found


@pytest.mark.parametrize("most_asks", [1, 3, 40])
def test_company_changes_nothing(most_asks: int, runner: CudaModelRunner, alone: dict[int, list[int]]) -> None:
    """Masks that come while they are waited for, and masks that do not; more requests than slots."""
    rng = random.Random(most_asks)
    worker = TextWorker(VOCAB_SIZE, lambda: rng.randrange(most_asks))
    assert cuda_answers(runner, worker, WISHES) == alone


def test_aborted_neighbours_change_nothing(runner: CudaModelRunner, alone: dict[int, list[int]]) -> None:
    rng = random.Random(5)
    worker = TextWorker(VOCAB_SIZE, lambda: rng.choice((0, 0, 30)))
    found = cuda_answers(runner, worker, WISHES, random.Random(6))
    ends = [worker.finished[number, 0].finish_reason.name for number in alone]
    assert 0 < ends.count("ABORT") < len(ends) / 2
    for number, tokens in alone.items():
        assert found[number] == (tokens if ends[number] != "ABORT" else tokens[: len(found[number])])
