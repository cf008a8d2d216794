"""The prefix that is kept for good, and what fits beside it."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import Config, EngineConfig, ModelConfig, PrefixCacheConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.memory_plan import MemoryPlan
from sparkinfer.engine.scheduler_output import SchedulerOutput
from sparkinfer.errors import ConfigError
from tests.model.tiny import GOLDEN
from workers.gpu_cache import attach_disk, beside_pinned, pinned_tokens, reserve_snapshots

BLOCK_SIZE = 16


def config(max_model_len: int = 0, pinned: tuple[str, ...] = (), enabled: bool = True) -> Config:
    return Config(
        model=ModelConfig(max_model_len=max_model_len),
        engine=EngineConfig(block_size=BLOCK_SIZE),
        prefix_cache=PrefixCacheConfig(pinned_tokens=pinned, enabled=enabled),
    )


@pytest.mark.parametrize(
    ("num_blocks", "max_model_len", "num_pinned", "longest"),
    [
        (100, 400, 0, 400),
        (100, 400, 398, 400),                # a prefix, a token behind it, a token of output
        (25, 400, 0, 400),
        (25, 400, 100, 19 * BLOCK_SIZE),     # six whole blocks are taken for good
        (25, 400, 15, 400),                  # not one
    ],
)
def test_the_longest_sequence_fits_beside_the_pinned_prefix(num_blocks, max_model_len, num_pinned, longest):
    plan = MemoryPlan(num_blocks, max_model_len, 1)
    assert beside_pinned(plan, num_pinned, config()) == dataclasses.replace(plan, max_model_len=longest)


@pytest.mark.parametrize(
    ("num_blocks", "num_pinned", "max_model_len", "words"),
    [
        (100, 399, 0, "399 are too many: sequences hold 400 tokens and the KV cache 1600"),
        (25, 300, 0, "300 are too many"),
        (25, 100, 400, "max_model_len = 400: 304 fit"),
    ],
)
def test_a_prefix_that_leaves_no_room_is_the_operators_error(num_blocks, num_pinned, max_model_len, words):
    with pytest.raises(ConfigError, match=words):
        beside_pinned(MemoryPlan(num_blocks, 400, 1), num_pinned, config(max_model_len))


def test_pinned_tokens_are_the_models_and_need_the_cache():
    assert pinned_tokens(config(pinned=("1", "9")), vocab_size=10) == [1, 9]
    assert pinned_tokens(config(pinned=("1", "9"), enabled=False), vocab_size=10) == []
    with pytest.raises(ConfigError, match="pinned_tokens: token id 10: allowed: 0 to 9"):
        pinned_tokens(config(pinned=("1", "10")), vocab_size=10)


class CopyingRunner:
    """Notes the snapshots that it is told to write."""

    bytes_per_slot = 0

    def __init__(self) -> None:
        self.saved: list[int] = []

    def copy(self, output: SchedulerOutput) -> None:
        assert not any(copy.restores for copy in output.state_copies)
        self.saved += [copy.snapshot for copy in output.state_copies]


@pytest.mark.parametrize(
    ("device", "bytes_per_snapshot", "enabled", "num_saved"),
    [("cuda", 1 << 20, True, 21), ("cpu", 1 << 20, True, 0), ("cuda", 0, True, 0), ("cuda", 1 << 20, False, 0)],
)
def test_a_gpus_snapshots_all_have_their_memory_before_the_first_request(
    device, bytes_per_snapshot, enabled, num_saved, monkeypatch
):
    monkeypatch.setattr("workers.gpu_cache.choose_device", lambda name: torch.device(device))
    settings = config(enabled=enabled)
    cache = make_cache(
        settings.prefix_cache, num_blocks=4, block_size=BLOCK_SIZE, bytes_per_snapshot=bytes_per_snapshot, free=42 << 20
    )
    runner, turns = CopyingRunner(), []
    reserve_snapshots(settings, cache, runner, lambda: turns.append(len(runner.saved)))
    assert runner.saved == list(range(num_saved))
    assert turns == sorted(set(turns))


def test_what_a_cache_holds_tells_files_apart_not_what_it_is_called(tmp_path, monkeypatch):
    """ "auto" is another type on another device; written out it is the same prefix."""
    gguf = GGUFFile.open(GOLDEN / "qwen3.gguf")
    hparams = HParams.from_gguf(gguf)
    names = []
    for device, kv_dtype in (("cpu", "auto"), ("cpu", "f16"), ("cuda", "auto"), ("cuda", "bf16"), ("cpu", "bf16")):
        monkeypatch.setattr("workers.gpu_cache.choose_device", lambda name: torch.device(name))
        settings = Config(
            engine=EngineConfig(block_size=BLOCK_SIZE, device=device, kv_dtype=kv_dtype),
            prefix_cache=PrefixCacheConfig(directory=str(tmp_path)),
        )
        cache = make_cache(settings.prefix_cache, num_blocks=4, block_size=BLOCK_SIZE, bytes_per_snapshot=0, free=0)
        with mock.patch("workers.gpu_cache.PrefixDisk") as opened:
            attach_disk(settings, gguf, hparams, cache, CopyingRunner(), mock.MagicMock())
        names.append(opened.call_args.args[1])
    cpu_auto, f16, cuda_auto, bf16, cpu_bf16 = names
    assert cpu_auto == f16
    assert cuda_auto == bf16 == cpu_bf16
    assert cpu_auto != cuda_auto
