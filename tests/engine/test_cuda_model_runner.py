"""The CUDA runner's bookkeeping on the CPU, kernels replaced by their references: tokens, slots, blocks, order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.model_runner import DeviceMemoryError
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import Logprobs, SchedulerOutput
from sparkinfer.engine.state_pool import bytes_per_slot
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
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
from tests.engine.plain_kernels import use_plain_kernels
from tests.model.driver import load, run_chunks
from tests.model.tiny import tiny_gguf

CPU = torch.device("cpu")
NUM_SEQS = 3


@pytest.fixture(params=["qwen35", "qwen3moe", "qwen2", "llama", "qwen35moe", "gemma3", "muse-glimmer"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_gguf(request.param, tmp_path)


@pytest.fixture
def runner(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaModelRunner]:
    use_plain_kernels(monkeypatch)
    runner = make_runner(path, CPU, NUM_SEQS, num_blocks=16)
    yield runner
    runner.close()


def check(driver: RunnerDriver, path: Path, key: object, num_rows: int) -> None:
    mean_kl, num_wrong = disagreement(path, driver.tokens[key], driver.logprobs[key])
    assert len(driver.logprobs[key]) == num_rows
    assert mean_kl < MAX_MEAN_KL
    assert num_wrong == 0


@pytest.mark.parametrize("stepwise_tokens", [0, 16])
def test_chunks_and_decode_steps_mix(
    stepwise_tokens: int, path: Path, runner: CudaModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkinfer.engine.cuda_forward.STEPWISE_TOKENS", stepwise_tokens)
    driver = RunnerDriver(runner, NUM_SEQS)
    driver.add("long", prompt(0, 40), WATCHED)
    driver.add("short", prompt(60, 2), WATCHED)
    driver.add("one", prompt(80, 1), WATCHED)
    driver.step({"long": 3, "short": 2})
    driver.step({"short": 0, "long": 1, "one": 1})
    driver.step({"long": 36, "one": 0, "short": 0})
    driver.step({"one": 0, "long": 0, "short": 0})
    driver.step({"long": 0})
    check(driver, path, "long", 3)
    check(driver, path, "short", 4)
    check(driver, path, "one", 3)


def test_slots_and_blocks_are_used_again(path: Path, runner: CudaModelRunner) -> None:
    driver = RunnerDriver(runner, NUM_SEQS)
    use_slots_again(driver, 20, lambda turn: check(driver, path, turn, 2))


def test_steps_may_be_in_flight_before_their_tokens_are_known(path: Path, runner: CudaModelRunner) -> None:
    watched, greedy = texts_in_flight(runner, NUM_SEQS, NUM_SEQS, num_steps=4)
    assert watched == greedy


def test_state_comes_back_from_a_snapshot(path: Path, runner: CudaModelRunner) -> None:
    driver = RunnerDriver(runner, NUM_SEQS)
    resume_from_snapshot(driver, 32, 37, path.stem.startswith("qwen35"))
    check(driver, path, "second", 2)
    check(driver, path, "first", 3)


class TokenSink:
    """Tokens and reused prompt tokens by request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.scores: dict[int, list[Logprobs]] = {}

    def publish(self, events: StepEvents) -> None:
        for sequence, _, scores in events.scores:
            self.scores.setdefault(sequence.request_id, []).extend(scores)
        for sequence, token_id in zip(events.sequences, events.token_ids):
            self.tokens.setdefault(sequence.request_id, []).append(token_id)
        self.cached |= {sequence.request_id: sequence.num_cached_tokens for sequence in events.finished}


def test_engine_resumes_cached_prefixes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than slots, prompts in chunks, prefixes and states from the cache: no token is worse than noise."""
    use_plain_kernels(monkeypatch)
    sinks = []
    prompts = [prompt(0, 48) + prompt(50 + 9 * number, 3 + 8 * number) for number in range(5)]
    for is_enabled in (True, False):
        runner = make_runner(path, CPU, NUM_SEQS, num_blocks=32)
        cache = make_cache(PrefixCacheConfig(enabled=is_enabled, min_tokens=16), num_blocks=32, block_size=16,
                           bytes_per_snapshot=bytes_per_slot(HParams.from_gguf(GGUFFile.open(path))), free=1 << 30)
        config = SchedulerConfig(max_num_seqs=NUM_SEQS, max_num_batched_tokens=40)
        sink = TokenSink()
        engine = Engine(Scheduler(config, cache, 256), runner, sink)
        for number, prompt_token_ids in enumerate(prompts):
            engine.submit(RequestId(number), 0, prompt_token_ids, SamplingParams(max_tokens=9, temperature=0.0))
        while engine.has_work:
            engine.step()
        engine.close()
        sinks.append(sink)
    model = load(path)
    for sink in sinks:
        for number, tokens in sink.tokens.items():
            assert len(tokens) == 9
            logits = run_chunks(model, [*prompts[number], *tokens], 128)[len(prompts[number]) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            assert float((logits.amax(-1) - chosen).max()) < 0.15
    assert max(sinks[0].cached.values()) >= 48 > max(sinks[1].cached.values())


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("chunk_tokens", [5, 64])
def test_prompts_are_scored_beside_decoding_sequences(
    path: Path, chunk_tokens: int, is_deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_kernels(monkeypatch)
    runner = make_runner(path, CPU, NUM_SEQS, num_blocks=16, is_deterministic=is_deterministic)
    tokens, first = prompt(0, 30), 7
    cache = make_cache(PrefixCacheConfig(enabled=False), num_blocks=16, block_size=16, bytes_per_snapshot=0, free=0)
    config = SchedulerConfig(max_num_seqs=NUM_SEQS, policy="chunked", prefill_chunk_tokens=chunk_tokens)
    sink = TokenSink()
    engine = Engine(Scheduler(config, cache, 256), runner, sink)
    engine.submit(RequestId(0), 0, prompt(40, 20), GREEDY)
    for _ in range(6):
        engine.step()
    scored = SamplingParams(max_tokens=0, prompt_logprobs=1024, prompt_logprobs_from=first, seed=1)
    engine.submit(RequestId(1), 0, tokens, scored)
    while engine.has_work:
        engine.step()
    engine.close()
    assert len(sink.tokens[0]) == 64
    rows = {}
    for position, entry in enumerate(sink.scores[1], first):
        row = rows[position - 1] = torch.empty(1024)
        row[torch.tensor(entry.top_token_ids)] = torch.tensor(entry.top_logprobs)
        assert entry.logprob == row[tokens[position]]
    assert list(rows) == list(range(first - 1, len(tokens) - 1))
    mean_kl, num_wrong = disagreement(path, tokens, rows)
    assert mean_kl < MAX_MEAN_KL
    assert num_wrong == 0


def test_rows_of_nan_are_told_and_harmless(runner: CudaModelRunner) -> None:
    driver = RunnerDriver(runner, NUM_SEQS)
    driver.add("broken", prompt(0, 4), GREEDY)
    driver.step({"broken": 4})
    graph = runner._forward.graphs._graphs[1]
    for pool in (*graph._inputs.kv, graph._inputs.conv):
        for tensor in pool or ():
            if tensor is not None:
                tensor.fill_(float("nan"))
    driver.launch({"broken": 0})
    driver.launch({"broken": 0})
    for handle, _ in driver._in_flight:
        result = handle.wait()
        assert result.nan_rows == [0]
        assert 0 <= result.token_ids[0] < 1024


def test_controls_that_find_no_memory_cost_their_step_only(runner: CudaModelRunner, monkeypatch: pytest.MonkeyPatch):
    def build(output):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(runner._sampling, "build", build)
        handle = runner.launch(SchedulerOutput())
        with pytest.raises(DeviceMemoryError):
            handle.wait()


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
def test_yarn_scales_what_it_turns(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole heads by the scores' scale, parts of heads by the norms."""
    read = HParams.from_gguf.__func__

    def stretched(cls: type[HParams], gguf: GGUFFile) -> HParams:
        hparams = read(cls, gguf)
        rope = replace(hparams.rope, scaling_type="yarn", scaling_factor=8.0, original_context=64)
        return replace(hparams, rope=rope)

    monkeypatch.setattr(HParams, "from_gguf", classmethod(stretched))
    use_plain_kernels(monkeypatch)
    path = tiny_gguf(architecture, tmp_path)
    runner = make_runner(path, CPU, NUM_SEQS, num_blocks=16)
    driver = RunnerDriver(runner, NUM_SEQS)
    driver.add("only", prompt(0, 100), WATCHED)
    driver.step({"only": 100})
    driver.step({"only": 0})
    check(driver, path, "only", 2)
    runner.close()


@pytest.mark.parametrize("architecture", ["gemma3", "muse-glimmer"])
def test_windows_reach_over_chunks(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plain_kernels(monkeypatch)
    path = tiny_gguf(architecture, tmp_path)
    runner = make_runner(path, CPU, NUM_SEQS, num_blocks=16)
    driver = RunnerDriver(runner, NUM_SEQS)
    driver.add("only", prompt(0, 120), WATCHED)
    driver.step({"only": 90})
    driver.step({"only": 30})
    driver.step({"only": 0})
    check(driver, path, "only", 2)
    runner.close()
