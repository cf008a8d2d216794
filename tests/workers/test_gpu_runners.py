"""What the device changes in a step's limits; what a start on a CPU needs of its memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config, load_config
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.memory_plan import MemoryPlan
from sparkinfer.engine.model_runner import ModelRunner
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.state_pool import bytes_per_slot
from sparkinfer.errors import ConfigError
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.checkpoint.builder import Tensor, gguf_bytes
from tests.engine.test_hybrid_model import Collected
from tests.model.tiny import GOLDEN
from workers.gpu_runners import step_limits, torch_runner

CHUNK_MS = {64: 14.0, 256: 18.0, 1024: 38.0, 2048: 61.0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], 128),
        (["scheduler.prefill_mix_max_tokens=64"], 64),
        (["scheduler.prefill_mix_max_tokens=0"], 128),
        (["scheduler.cpu_prefill_mix_max_tokens=0"], 2048),
        (["engine.runner=scripted"], 2048),
    ],
)
def test_prompts_beside_streams_are_short_on_a_cpu(settings: list[str], expected: int) -> None:
    config = load_config(None, ["engine.device=cpu", *settings], {})
    assert step_limits(config, {}).prefill_mix_max_tokens == expected


@pytest.mark.parametrize(("settings", "expected"), [([], 2048), (["scheduler.max_num_batched_tokens=96"], 96)])
def test_steps_are_short_on_a_cpu(settings: list[str], expected: int) -> None:
    config = load_config(None, ["engine.device=cpu", *settings], {})
    assert step_limits(config, {}).max_num_batched_tokens == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], 1024),
        (["scheduler.prefill_mix_max_ms=70"], 2048),
        (["scheduler.prefill_mix_max_ms=3"], 64),
        (["scheduler.prefill_mix_max_ms=0"], 2048),
        (["scheduler.prefill_mix_max_tokens=300"], 300),
        (["scheduler.prefill_mix_max_tokens=0"], 1024),
    ],
)
def test_prompts_beside_streams_follow_what_a_gpu_takes(settings: list[str], expected: int) -> None:
    config = load_config(None, ["engine.runner=scripted", *settings], {})
    assert step_limits(config, CHUNK_MS).prefill_mix_max_tokens == expected


def boot(path: Path, config: Config) -> tuple[ModelRunner, MemoryPlan, HParams]:
    gguf = GGUFFile.open(path)
    hparams = HParams.from_gguf(gguf)
    runner, plan = torch_runner(mock.MagicMock(config=config), gguf, hparams)
    return runner, plan, hparams


@pytest.mark.parametrize("covered", [True, False])
def test_states_that_do_not_fit_are_refused_at_the_start(covered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were left out of the plan: the first steps of many sequences then took memory that was not there."""
    monkeypatch.setattr("workers.cpu_runner.is_covered", lambda hparams: covered)
    monkeypatch.setattr("workers.cpu_runner.free_host_memory", lambda: 16 << 20)
    monkeypatch.setattr("sparkinfer.engine.device.free_host_memory", lambda: 16 << 20)
    config = load_config(None, ["engine.device=cpu", "engine.threads=1"], {})
    with pytest.raises(ConfigError, match=r"max_num_seqs = 64: recurrent states of so many sequences take 0\.02 GiB"):
        boot(GOLDEN / "qwen35.gguf", config)


def test_a_model_without_attention_is_served(tmp_path: Path) -> None:
    whole = GGUFFile.open(GOLDEN / "qwen35.gguf")
    metadata = whole.metadata | {"qwen35.block_count": 1, "qwen35.attention.recurrent_layers": [True]}
    tensors = {
        name: Tensor(info.shape, info.ggml_type, whole.data(name).tobytes())
        for name, info in whole.tensors.items() if not name.startswith("blk.1.")
    }
    path = tmp_path / "recurrent.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    config = load_config(None, ["engine.device=cpu", "engine.threads=1", "scheduler.max_num_seqs=4"], {})
    runner, plan, hparams = boot(path, config)
    assert dataclasses.astuple(plan) == (4 * hparams.max_position // config.engine.block_size, hparams.max_position, 0)
    cache = make_cache(
        config.prefix_cache, num_blocks=plan.num_blocks, block_size=config.engine.block_size,
        bytes_per_snapshot=bytes_per_slot(hparams), bytes_per_block=0, swap_gib=0.01, free=1 << 30,
    )
    collected = Collected()
    engine = Engine(Scheduler(config.scheduler, cache, plan.max_model_len), runner, collected)
    sampling = SamplingParams(max_tokens=5, temperature=0.0, logprobs=0)
    for request in range(2):  # the second one starts from the first one's state
        engine.submit(RequestId(request), 0, list(range(1, 60)), sampling)
        while engine.has_work:
            engine.step()
    engine.close()
    assert len(collected.tokens[0]) == 5
    assert collected.tokens[1] == collected.tokens[0]
