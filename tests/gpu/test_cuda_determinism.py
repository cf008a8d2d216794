"""Deterministic mode on the card: a sequence's numbers are the same to the last bit, whatever runs beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.state_pool import bytes_per_slot
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
PROMPT_TOKENS = 300
DECODED = 6
WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
DRAWN = SamplingParams(max_tokens=64, temperature=1.0, top_p=0.9, seed=3, logprobs=1024)
BF16, INT8 = torch.bfloat16, torch.int8
RUNNERS = {"qwen3": (BF16, INT8), "qwen3moe": (BF16,), "qwen35": (BF16, INT8), "tiny-hybrid-moe": (BF16,)}
NUM_REQUESTS, NUM_BLOCKS = 64, 220


def prompt(start: int, count: int) -> list[int]:
    return (golden("qwen3")["tokens_300"].tolist() * 3)[start : start + count]


def model_file(name: str, folder: Path) -> Path:
    if not name.startswith("tiny-"):
        return tiny_gguf(name, folder)
    synthetic_gguf = pytest.importorskip("ops.bench.synthetic_gguf")
    written: Path = folder / f"{name}.gguf"
    synthetic_gguf.write(synthetic_gguf.SHAPES[name], written)
    return written


@pytest.fixture(scope="module", params=[(name, kv_dtype) for name, dtypes in RUNNERS.items() for kv_dtype in dtypes],
                ids=lambda pair: f"{pair[0]}-{str(pair[1]).removeprefix('torch.')}")
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, CudaModelRunner]]:
    name, kv_dtype = request.param
    path = model_file(name, tmp_path_factory.mktemp("models"))
    runner = make_runner(path, torch.device("cuda", 0), NUM_SEQS, 700, kv_dtype, is_deterministic=True)
    yield path, runner
    runner.close()


def numbers(
    driver: RunnerDriver, cuts: tuple[int, ...], others: int, sampling: SamplingParams
) -> tuple[list[int], dict[int, torch.Tensor]]:
    """Tokens and log-probabilities of a prompt in pieces and a few tokens behind it, with `others` all the while.

    Every third of the others brings its own prompt in the step of the first piece.
    """
    lengths = {key: 5 + 11 * key % 90 for key in range(others)}
    for key in lengths:
        driver.add(key, prompt(3 * key, lengths[key]), WATCHED)
    late = {key: count for key, count in lengths.items() if key % 3 == 0}
    early = {key: count for key, count in lengths.items() if key not in late}
    if early:
        driver.step(early)
    driver.add("watched", prompt(100, PROMPT_TOKENS), sampling)
    for number, count in enumerate(cuts):
        driver.step({"watched": count, **dict.fromkeys(early, 0), **(dict.fromkeys(late, 0) if number else late)})
    for _ in range(DECODED):
        driver.step({**dict.fromkeys(lengths, 0), "watched": 0})
    return driver.tokens["watched"], driver.logprobs["watched"]


@pytest.mark.parametrize("sampling", [WATCHED, DRAWN], ids=["greedy", "drawn"])
def test_bits_do_not_depend_on_the_batch(sampling: SamplingParams, loaded: tuple[Path, CudaModelRunner]) -> None:
    """Models whose experts no kernel takes have no grid: their prompts go token by token."""
    path, runner = loaded
    tokens, expected = numbers(RunnerDriver(runner, NUM_SEQS), (PROMPT_TOKENS,), 0, sampling)
    cuts = [((300,), 2), ((64, 236), 7), ((128, 64, 108), 15), ((192, 64, 44), 0), ((256, 44), 63)]
    for seed, (pieces, others) in enumerate(cuts, 1):
        found_tokens, found = numbers(RunnerDriver(runner, NUM_SEQS, seed), pieces, others, sampling)
        assert found_tokens == tokens
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[position], expected[position]) for position in expected), (pieces, others)
    mean_kl, num_wrong = disagreement(path, tokens, expected)
    assert mean_kl < 1e-3
    assert num_wrong == 0


class Service:
    """An engine over a runner with few blocks, and all it said: token, its log-probability, the next ones."""

    def __init__(
        self, loaded: tuple[Path, CudaModelRunner], num_blocks: int, uses_cache: bool, chunk_tokens: int
    ) -> None:
        path, runner = loaded
        config = PrefixCacheConfig(enabled=uses_cache, min_tokens=0, checkpoint_tokens=128, host_mib=64)
        self.cache = make_cache(
            config, num_blocks=num_blocks, block_size=runner.block_size, free=1 << 30,
            bytes_per_snapshot=bytes_per_slot(HParams.from_gguf(GGUFFile.open(path))), prompt_grid=runner.prompt_grid,
        )
        limits = SchedulerConfig(max_num_seqs=NUM_SEQS, prefill_chunk_tokens=chunk_tokens)
        self.scheduler = Scheduler(limits, self.cache, 1024)
        self.engine = Engine(self.scheduler, runner, self)
        self.said: dict[int, list[tuple[object, ...]]] = {}
        self.num_cached = 0

    def publish(self, events: StepEvents) -> None:
        for sequence, token_id, entry in zip(events.sequences, events.token_ids, events.logprobs or (), strict=True):
            assert entry is not None
            said = (token_id, entry.logprob, entry.top_token_ids, entry.top_logprobs)
            self.said.setdefault(sequence.request_id, []).append(said)
        self.num_cached += sum(sequence.num_cached_tokens for sequence in events.finished)

    def submit(self, number: int, token_ids: list[int]) -> None:
        sampling = SamplingParams(max_tokens=40, temperature=0.8 * (number % 2), seed=number, logprobs=3,
                                  ignore_eos=True)
        self.engine.submit(RequestId(number), 0, token_ids, sampling)

    def finish(self) -> dict[int, list[tuple[object, ...]]]:
        while self.engine.has_work:
            self.engine.step()
        self.engine.check_integrity()
        return self.said


def test_requests_alone_and_among_others(loaded: tuple[Path, CudaModelRunner]) -> None:
    """64 at once, beginnings in common, too few blocks for all, a second time with everything cached."""
    rng = random.Random(5)
    requests = {number: prompt(0, rng.randrange(1, 400)) + prompt(7 * number, 9) for number in range(NUM_REQUESTS)}
    expected: dict[int, list[tuple[object, ...]]] = {}
    for number in range(0, NUM_REQUESTS, 7):
        service = Service(loaded, NUM_BLOCKS, uses_cache=False, chunk_tokens=512)
        service.submit(number, requests[number])
        expected |= service.finish()
    service = Service(loaded, NUM_BLOCKS, uses_cache=True, chunk_tokens=128)
    for _ in range(2):
        service.said.clear()
        for number, token_ids in requests.items():
            service.submit(number, token_ids)
        said = service.finish()
        assert {number: said[number] for number in expected} == expected
    assert service.scheduler.num_preemptions > 0
    assert service.num_cached > 5000


class Scores:
    """An OutputSink that keeps what prompts' tokens got."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []

    def publish(self, events: StepEvents) -> None:
        for _, _, scores in events.scores:
            self.logprobs += [entry.logprob for entry in scores]


def test_scores_do_not_depend_on_chunks(tmp_path: Path) -> None:
    runner = make_runner(tiny_gguf("qwen35", tmp_path), torch.device("cuda", 0), 8, 128, is_deterministic=True)
    found = []
    for chunk_tokens, others in ((512, 0), (64, 0), (128, 3)):
        cache = CacheManager(BlockManager(runner.num_blocks, runner.block_size), prompt_grid=runner.prompt_grid)
        config = SchedulerConfig(max_num_seqs=8, policy="chunked", prefill_chunk_tokens=chunk_tokens)
        sink = Scores()
        engine = Engine(Scheduler(config, cache, 1024), runner, sink)
        for number in range(others):
            engine.submit(RequestId(number + 1), 0, prompt(40, 20 + number), WATCHED)
        for _ in range(6):
            engine.step()
        scored = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=1, seed=1)
        engine.submit(RequestId(0), 0, prompt(0, 200), scored)
        while engine.has_work:
            engine.step()
        found.append(sink.logprobs)
    runner.close()
    assert len(found[0]) == 199
    assert found[0] == found[1] == found[2]
