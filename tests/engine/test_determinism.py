"""Deterministic mode under the engine: tokens and logprobs of every request are those of the request run alone and
cold, bit for bit, whatever the batch, the chunks, the preemptions, the cached prefixes and the resumed states."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from kernels.cpu.dot import dot_instruction
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.state_pool import StatePool, bytes_per_slot
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.engine.torch_model_runner import TorchModelRunner
from sparkinfer.model.registry import Model, load_model
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.model.driver import load_cpu
from tests.model.tiny import tiny_gguf

CPU = torch.device("cpu")
BLOCK_SIZE = 4
MAX_NUM_SEQS = 6
CONTROLS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.2, "top_p": 0.8, "seed": 4},
    {"temperature": 0.7, "top_k": 9, "min_p": 0.01, "seed": 2**63 + 1, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 0.8, "presence_penalty": 0.3},
    {"temperature": 1.0, "logit_bias": {3: 2.0, 9: -50.0}, "seed": 7},
]


def load(path: Path) -> Model:
    gguf = GGUFFile.open(path)
    return load_model(gguf, HParams.from_gguf(gguf), CPU, lambda done, total: None, is_deterministic=True)


MODELS = ("llama", "qwen3moe", "qwen35", "qwen35moe", "kernels-llama", "kernels-qwen35moe")


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> Model:
    architecture = request.param.removeprefix("kernels-")
    path = tiny_gguf(architecture, tmp_path_factory.mktemp("tiny"))
    if architecture == request.param:
        return load(path)
    if dot_instruction() is None:
        pytest.skip("this CPU has no instruction that the kernels need")
    return load_cpu(path, num_threads=2)


class Service:
    """An engine over the model, and all it said."""

    def __init__(
        self, model: Model, num_blocks: int = 128, kv_dtype: torch.dtype = torch.float32, uses_cache: bool = False,
        swap_gib: float = 0.0, **limits,
    ) -> None:
        hparams = model.hparams
        length = min(hparams.max_position, 512)
        cache = make_cache(
            PrefixCacheConfig(enabled=uses_cache, min_tokens=0, checkpoint_tokens=12, host_mib=64),
            num_blocks=num_blocks, block_size=BLOCK_SIZE, bytes_per_snapshot=bytes_per_slot(hparams), free=1 << 30,
            bytes_per_block=1 << 10, swap_gib=swap_gib,
        )
        self.runner = TorchModelRunner(
            model, KVCache(hparams, num_blocks, BLOCK_SIZE, kv_dtype, CPU), StatePool(hparams, MAX_NUM_SEQS, CPU),
            MAX_NUM_SEQS, length, CPU,
        )
        self.scheduler = Scheduler(SchedulerConfig(max_num_seqs=MAX_NUM_SEQS, **limits), cache, length)
        self.engine = Engine(self.scheduler, self.runner, self)
        self.said: dict[tuple[int, int], list[tuple]] = {}
        self.num_cached: dict[int, int] = {}
        self.codes: dict[int, str | None] = {}

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exception) -> None:
        self.engine.close()

    def publish(self, events: StepEvents) -> None:
        for sequence, token_id, entry in zip(events.sequences, events.token_ids, events.logprobs or (), strict=True):
            said = (token_id, entry.logprob, entry.top_token_ids, entry.top_logprobs)
            self.said.setdefault((sequence.request_id, sequence.choice), []).append(said)
        self.codes |= {sequence.request_id: sequence.code for sequence in events.finished}
        self.num_cached |= {sequence.request_id: sequence.num_cached_tokens for sequence in events.finished}

    def submit(self, request_id: int, prompt: list[int], controls: dict, n: int = 1, steps: int = 0) -> None:
        sampling = SamplingParams(**{"max_tokens": 10, "logprobs": 3, "ignore_eos": True} | controls)
        self.engine.submit(RequestId(request_id), 0, prompt, sampling, n, hints=PrefixHints(turn_starts=(len(prompt),)))
        for _ in range(steps):
            self.engine.step()

    def finish(self) -> dict[tuple[int, int], list[tuple]]:
        while self.engine.has_work:
            self.engine.step()
        return self.said


def make_requests(count: int, seed: int, vocab_size: int, longest: int = 60) -> list[tuple[list[int], dict]]:
    rng = random.Random(seed)
    shared = [rng.randrange(vocab_size) for _ in range(longest)]
    return [
        (
            shared[: rng.randrange(1, longest)] + [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 8))],
            CONTROLS[i % len(CONTROLS)],
        )
        for i in range(count)
    ]


def alone(model: Model, requests: list[tuple[list[int], dict]], **options) -> dict[tuple[int, int], list[tuple]]:
    said = {}
    for request_id, (prompt, controls) in enumerate(requests):
        with Service(model, **options) as service:
            service.submit(request_id, prompt, controls)
            said |= service.finish()
    return said


@pytest.fixture(scope="module")
def requests(model: Model) -> list[tuple[list[int], dict]]:
    return make_requests(8, 5, model.hparams.vocab_size)


@pytest.fixture(scope="module")
def expected(model: Model, requests) -> dict[tuple[int, int], list[tuple]]:
    return alone(model, requests)


@pytest.fixture(scope="module")
def short_prompts(model: Model, requests) -> tuple[list[tuple[list[int], dict]], dict]:
    """Requests that grow more than they bring, and what they get alone."""
    short = [(prompt[-9:], controls | {"max_tokens": 20}) for prompt, controls in requests]
    return short, alone(model, short)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunks_and_batches(model: Model, requests, expected, chunk: int) -> None:
    with Service(model, prefill_chunk_tokens=chunk, max_num_batched_tokens=96) as service:
        for request_id, (prompt, controls) in enumerate(requests):
            service.submit(request_id, prompt, controls, steps=request_id % 3)
        assert service.finish() == expected


@pytest.mark.parametrize("swap_gib", [0.0, 0.001])
def test_preemption(model: Model, short_prompts, swap_gib: float) -> None:
    short, short_expected = short_prompts
    with Service(model, num_blocks=24, swap_gib=swap_gib, prefill_chunk_tokens=16) as service:
        for request_id, (prompt, controls) in enumerate(short):
            service.submit(request_id, prompt, controls)
        assert service.finish() == short_expected
        assert service.scheduler.num_preemptions > 0
        assert (service.scheduler.num_swap_outs > 0) == (swap_gib > 0 and bytes_per_slot(model.hparams) > 0)


def test_cached_prefixes_and_resumed_states(model: Model, requests, expected) -> None:
    with Service(model, uses_cache=True, prefill_chunk_tokens=16) as service:
        for request_id, (prompt, controls) in enumerate(requests):
            service.submit(request_id, prompt, controls, steps=2)
        assert service.finish() == expected
        service.said.clear()
        for request_id, (prompt, controls) in enumerate(requests):  # a second time, warm
            service.submit(request_id, prompt, controls)
        assert service.finish() == expected
        assert sum(service.num_cached.values()) > 50


def test_a_conversation_that_continues_from_its_answers(model: Model) -> None:
    rng = random.Random(9)
    history = [rng.randrange(model.hparams.vocab_size) for _ in range(20)]
    turns = []
    with Service(model, uses_cache=True) as service:
        for turn in range(3):
            turns.append((list(history), {"temperature": 0.8, "seed": turn}))
            service.submit(turn, *turns[-1])
            service.finish()
            history += [token_id for token_id, *_ in service.said[turn, 0]]
            history += [rng.randrange(model.hparams.vocab_size) for _ in range(3)]
        assert service.num_cached[2] > 20
    assert service.said == alone(model, turns)


def test_choices_share_a_prefill_and_nothing_else(model: Model) -> None:
    prompt = [5, 6, 7, 8, 9, 10, 11]
    with Service(model, uses_cache=True) as service:
        service.submit(0, prompt, {"temperature": 1.0, "seed": 20}, n=3)
        together = service.finish()
    separately = alone(model, [(prompt, {"temperature": 1.0, "seed": 20 + i}) for i in range(3)])
    assert [together[0, i] for i in range(3)] == [separately[i, 0] for i in range(3)]


def test_int8_cache(model: Model, requests) -> None:
    few = requests[:4]
    with Service(model, kv_dtype=torch.int8, uses_cache=True, prefill_chunk_tokens=5, num_blocks=40) as service:
        for request_id, (prompt, controls) in enumerate(few):
            service.submit(request_id, prompt, controls)
        assert service.finish() == alone(model, few, kv_dtype=torch.int8)


def test_smollm2(embedded_model: Path) -> None:
    model = load(embedded_model)
    few = [(prompt, controls | {"max_tokens": 2}) for prompt, controls in make_requests(3, 1, 49152, longest=9)]
    with Service(model, uses_cache=True, prefill_chunk_tokens=7) as service:
        for request_id, (prompt, controls) in enumerate(few):
            service.submit(request_id, prompt, controls, steps=1)
        assert service.finish() == alone(model, few)
