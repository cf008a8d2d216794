"""Deterministic mode on the card: a sequence's numbers are the same to the last bit, whatever runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver, disagreement, make_runner
from tests.model.tiny import golden, tiny_gguf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel
]

NUM_SEQS = 64
PROMPT_TOKENS = 60
DECODED = 6
WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
DRAWN = SamplingParams(max_tokens=64, temperature=1.0, top_p=0.9, seed=3, logprobs=1024)


def prompt(start: int, count: int) -> list[int]:
    return (golden("qwen3")["tokens_300"].tolist() * 3)[start : start + count]


def numbers(
    driver: RunnerDriver, cuts: tuple[int, ...], others: int, sampling: SamplingParams
) -> tuple[list[int], dict[int, torch.Tensor]]:
    """Tokens and log-probabilities of a prompt in pieces and a few tokens behind it, with `others` all the while."""
    for key in range(others):
        driver.add(key, prompt(3 * key, 5 + key % 9), WATCHED)
    if others:
        driver.step({key: 5 + key % 9 for key in range(others)})
    driver.add("watched", prompt(100, PROMPT_TOKENS), sampling)
    beside = dict.fromkeys(range(others), 0)
    for count in cuts:
        driver.step({"watched": count, **beside})
    for _ in range(DECODED):
        driver.step({**beside, "watched": 0})
    return driver.tokens["watched"], driver.logprobs["watched"]


@pytest.mark.parametrize("sampling", [WATCHED, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8], ids=["bf16", "int8"])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3moe", "qwen35", "qwen35moe"])
def test_bits_do_not_depend_on_the_batch(
    architecture: str, kv_dtype: torch.dtype, sampling: SamplingParams, tmp_path: Path
) -> None:
    path = tiny_gguf(architecture, tmp_path)
    runner = make_runner(path, torch.device("cuda", 0), NUM_SEQS, 512, kv_dtype, is_deterministic=True)
    tokens, expected = numbers(RunnerDriver(runner, NUM_SEQS), (PROMPT_TOKENS,), 0, sampling)
    for seed, (cuts, others) in enumerate(
        [((60,), 2), ((7, 53), 7), ((1, 16, 43), 15), ((16, 16, 28), 0), ((59, 1), 63)], 1
    ):
        found_tokens, found = numbers(RunnerDriver(runner, NUM_SEQS, seed), cuts, others, sampling)
        assert found_tokens == tokens
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[position], expected[position]) for position in expected), (cuts, others)
    mean_kl, num_wrong = disagreement(path, tokens, expected)
    assert mean_kl < 1e-3
    assert num_wrong == 0
    runner.close()


class Scores:
    """An OutputSink that keeps what prompts' tokens got."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []

    def publish(self, events: StepEvents) -> None:
        for _, _, scores in events.scores:
            self.logprobs += [entry.logprob for entry in scores]


def test_scores_do_not_depend_on_chunks(tmp_path: Path) -> None:
    runner = make_runner(tiny_gguf("qwen35", tmp_path), torch.device("cuda", 0), 8, 64, is_deterministic=True)
    found = []
    for chunk_tokens, others in ((64, 0), (5, 0), (16, 3)):
        cache = CacheManager(BlockManager(runner.num_blocks, runner.block_size))
        config = SchedulerConfig(max_num_seqs=8, policy="chunked", prefill_chunk_tokens=chunk_tokens)
        sink = Scores()
        engine = Engine(Scheduler(config, cache, 256), runner, sink)
        for number in range(others):
            engine.submit(RequestId(number + 1), 0, prompt(40, 20 + number), WATCHED)
        for _ in range(6):
            engine.step()
        scored = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=1, seed=1)
        engine.submit(RequestId(0), 0, prompt(0, 50), scored)
        while engine.has_work:
            engine.step()
        found.append(sink.logprobs)
    runner.close()
    assert len(found[0]) == 49
    assert found[0] == found[1] == found[2]
