"""Prefix hits over real models: whatever was cached, every output is that of the same request run alone and cold."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.prefix_disk import PrefixDisk
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.state_pool import StatePool, bytes_per_slot
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.model.registry import Model, load_model
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from workers.gpu_cache import save_all

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent.parent / "data" / "golden"
BLOCK_SIZE = 4
MAX_NUM_SEQS = 4
GREEDY = {"max_tokens": 9, "temperature": 0.0, "logprobs": 2}


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def model(request, tmp_path_factory) -> Model:
    path = GOLDEN / f"{request.param}.gguf"
    if not path.exists():
        packed, path = path.with_suffix(".gguf.xz"), tmp_path_factory.mktemp("model") / path.name
        path.write_bytes(lzma.decompress(packed.read_bytes()))
    gguf = GGUFFile.open(path)
    return load_model(gguf, HParams.from_gguf(gguf), CPU, lambda done, total: None)


class Service:
    """An engine over the model, and what it said of each (request, choice)."""

    def __init__(
        self, model: Model, enabled: bool = True, num_blocks: int = 64, directory: Path | None = None, **prefix
    ) -> None:
        hparams = model.hparams
        prefix = {"min_tokens": 0, "checkpoint_tokens": 12, "host_mib": 64} | prefix
        self.cache = make_cache(
            PrefixCacheConfig(enabled=enabled, **prefix), num_blocks=num_blocks, block_size=BLOCK_SIZE,
            bytes_per_snapshot=bytes_per_slot(hparams), free=1 << 30,
        )
        runner = TorchModelRunner(
            model, KVCache(hparams, num_blocks, BLOCK_SIZE, torch.float32, CPU),
            StatePool(hparams, MAX_NUM_SEQS, CPU), MAX_NUM_SEQS, hparams.max_position, CPU,
        )
        config = SchedulerConfig(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=16, prefill_chunk_tokens=8)
        self.scheduler = Scheduler(config, self.cache, hparams.max_position)
        self.engine = Engine(self.scheduler, runner, self)
        if directory is not None:
            tier = self.cache.disk = DiskTier(self.cache.prefix_cache, PrefixDisk(directory, "0" * 32, 1 << 30))
            self.engine.before_close = lambda: save_all(tier, runner, grace_s=60)
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int], list[float]] = {}
        self.cached: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exception) -> None:
        self.engine.close()

    def publish(self, events: StepEvents) -> None:
        for sequence, token_id, logprobs in zip(events.sequences, events.token_ids, events.logprobs or (), strict=True):
            key = (sequence.request_id, sequence.choice)
            self.tokens.setdefault(key, []).append(token_id)
            self.logprobs.setdefault(key, []).append(logprobs.logprob)
        for sequence in events.finished:
            self.cached[sequence.request_id, sequence.choice] = sequence.num_cached_tokens

    def submit(self, request_id: int, prompt: list[int], n: int = 1, turns: tuple[int, ...] = (), **controls) -> None:
        sampling = SamplingParams(**(GREEDY | controls))
        self.engine.submit(RequestId(request_id), 0, prompt, sampling, n, hints=PrefixHints(turn_starts=turns))

    def finish(self) -> None:
        while self.engine.has_work:
            self.engine.step()
            self.engine.check_integrity()

    def run(self, request_id: int, prompt: list[int], **options) -> list[int]:
        self.submit(request_id, prompt, **options)
        self.finish()
        return self.tokens[request_id, 0]


def assert_as_if_alone(model: Model, service: Service, requests: dict[int, tuple[list[int], dict]]) -> None:
    for request_id, (prompt, options) in requests.items():
        with Service(model, enabled=False) as alone:
            alone.run(request_id, prompt, **options)
            for key, tokens in alone.tokens.items():
                assert service.tokens[key] == tokens
                assert service.logprobs[key] == pytest.approx(alone.logprobs[key], abs=1e-4)


def random_prompt(model: Model, length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.hparams.vocab_size, length).tolist()


def test_a_conversation_continues_from_the_end_of_its_answers(model):
    requests: dict[int, tuple[list[int], dict]] = {}
    with Service(model) as service:
        history = random_prompt(model, 21, seed=1)
        for turn in range(4):
            prompt = history + random_prompt(model, 5, seed=10 + turn)
            requests[turn] = (prompt, {"turns": (len(history),)})
            known = len(history) if turn else 0
            history = prompt + service.run(turn, prompt, turns=(len(history),))
            assert service.cached[turn, 0] >= known - 2 * BLOCK_SIZE
    assert_as_if_alone(model, service, requests)


def test_requests_that_arrive_together_share_what_the_first_computes(model):
    shared = random_prompt(model, 80, seed=2)
    requests = {i: (shared + random_prompt(model, 6 + i, seed=20 + i), {"turns": (80,)}) for i in range(4)}
    with Service(model, num_blocks=128) as service:
        for request_id, (prompt, options) in requests.items():
            service.submit(request_id, prompt, **options)
        service.finish()
        assert service.cached == {(0, 0): 0, (1, 0): 80, (2, 0): 80, (3, 0): 80}
        assert service.engine.stats.num_computed_tokens < 80 + 4 * (16 + 12)
    assert_as_if_alone(model, service, requests)


def test_choices_share_one_prefill_and_keep_their_own_controls(model):
    prompt = random_prompt(model, 42, seed=3)
    options = {"n": 4, "temperature": 1.0, "seed": 5}
    with Service(model) as service:
        service.run(7, prompt, **options)
        computed = service.engine.stats.num_computed_tokens
    assert computed <= 42 + 3 * 2 + 4 * (9 + 1)
    assert service.cached == {(7, choice): 0 for choice in range(4)}
    assert len({tuple(tokens) for tokens in service.tokens.values()}) > 1
    assert_as_if_alone(model, service, {7: (prompt, options)})


def test_outputs_do_not_depend_on_what_was_evicted_or_preempted(model):
    rng = np.random.default_rng(4)
    stems = [random_prompt(model, 30, seed=30 + i) for i in range(3)]
    requests = {}
    with Service(model, num_blocks=26) as service:
        for request_id in range(10):
            stem = stems[rng.integers(3)][: rng.integers(1, 31)]
            prompt = stem + rng.integers(0, model.hparams.vocab_size, rng.integers(1, 8)).tolist()
            requests[request_id] = (prompt, {"max_tokens": 20})
            service.submit(request_id, prompt, max_tokens=20)
            for _ in range(rng.integers(0, 12)):
                service.engine.step()
        service.finish()
        stats = service.cache.prefix_cache.stats
        assert stats.num_evictions > 0
        assert service.scheduler.num_preemptions > 0
        assert stats.num_tokens_reused > 0
    assert_as_if_alone(model, service, requests)


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.rglob(f"*.{suffix}"))


def test_prefixes_survive_a_restart(model, tmp_path):
    prompt = random_prompt(model, 41, seed=6)
    with Service(model, directory=tmp_path) as service:
        answer = service.run(0, prompt)
    assert files(tmp_path, "kv")
    longer = prompt + answer + random_prompt(model, 6, seed=7)
    with Service(model, directory=tmp_path) as service:
        service.run(1, prompt)
        service.run(2, longer)
        assert service.cached[1, 0] == 40
        assert service.cached[2, 0] >= len(prompt + answer) - 2 * BLOCK_SIZE
    assert_as_if_alone(model, service, {1: (prompt, {}), 2: (longer, {})})


def test_what_was_evicted_from_memory_comes_back_from_disk(model, tmp_path):
    prompts = {i: random_prompt(model, 60, seed=40 + i) for i in range(4)}
    with Service(model, num_blocks=30, directory=tmp_path) as service:
        for request_id, prompt in prompts.items():
            service.run(request_id, prompt)
        service.cache.disk.flush()
        for request_id, prompt in prompts.items():
            service.run(10 + request_id, prompt)
            assert service.cached[10 + request_id, 0] >= 52
    assert_as_if_alone(model, service, {10 + i: (prompt, {}) for i, prompt in prompts.items()})


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "removed", "swapped"])
def test_damaged_files_are_removed_and_computed_again(model, tmp_path, damage, caplog):
    prompt = random_prompt(model, 41, seed=8)
    with Service(model, directory=tmp_path) as service:
        service.run(0, prompt)
    others = files(tmp_path, "kv")
    for path in files(tmp_path, "state") or others[::3]:
        content = path.read_bytes()
        if damage == "truncated":
            path.write_bytes(content[:-1])
        elif damage == "flipped":
            path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
        elif damage == "emptied":
            path.write_bytes(b"")
        elif damage == "removed":
            path.unlink()
        else:
            path.write_bytes(others[1].read_bytes() if path != others[1] else others[0].read_bytes())
    with Service(model, directory=tmp_path) as service:
        service.run(1, prompt)
        assert service.cached[1, 0] < 40
    assert ("is damaged and not used" in caplog.text) == (damage != "removed")
    assert_as_if_alone(model, service, {1: (prompt, {})})
