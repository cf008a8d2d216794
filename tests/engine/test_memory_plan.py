"""What fits into the memory that is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import weights_f32_bytes
from sparkinfer.config import EngineConfig
from sparkinfer.engine import memory_plan
from sparkinfer.engine.memory_plan import GIB, beside_states, check_weights_fit, plan_memory
from sparkinfer.errors import CheckpointError, ConfigError
from tests.checkpoint.builder import gguf_bytes, model_metadata, model_tensors


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes(model_metadata("llama", 1), model_tensors("llama", 1)))
    gguf = GGUFFile.open(path)
    hparams = HParams.from_gguf(gguf)
    needed = weights_f32_bytes(gguf, hparams)
    check_weights_fit(gguf, hparams, needed)
    with pytest.raises(CheckpointError, match=r"tiny\.gguf: the weights take 0\.00 GiB as float32"):
        check_weights_fit(gguf, hparams, needed - 1)


@pytest.mark.parametrize(("limit", "free"), [("max", 10_000), ("5000", 5000 - 4000 + 1500), ("2000", 0)])
def test_cached_files_in_a_container_make_way(
    limit: str, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 2500\nfile 1600\nshmem 100\ninactive_file 1200\nactive_file 300\n")
    monkeypatch.setattr(memory_plan, "CGROUP", tmp_path)
    assert memory_plan._free_in_cgroup(10_000) == free
    monkeypatch.setattr(memory_plan, "CGROUP", tmp_path / "none")
    assert memory_plan._free_in_cgroup(10_000) == 10_000


@pytest.mark.parametrize(
    ("free", "is_shared", "kv_gib", "num_blocks"),
    [
        (64 * GIB, True, 0.0, 4096),    # of a machine what one sequence can use
        (3 * GIB, True, 0.0, 1536),     # or half, in blocks of 1 MiB
        (64 * GIB, False, 0.0, 32768),  # of a device what eight sequences can use
        (24 * GIB, False, 0.0, 24576),  # or all
        (24 * GIB, False, 1.5, 1536),
    ],
)
def test_a_device_gives_its_cache_all_that_it_has(free: int, is_shared: bool, kv_gib: float, num_blocks: int) -> None:
    config = EngineConfig(block_size=16, kv_cache_gib=kv_gib)
    plan = plan_memory(
        config, bytes_per_block=1 << 20, max_num_seqs=8, max_model_len=0, model_context=65536, free=free,
        is_shared=is_shared,
    )
    assert (plan.num_blocks, plan.max_model_len) == (num_blocks, min(65536, num_blocks * 16))


def test_a_context_that_a_device_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"65536: needs 4\.00 GiB of KV cache, 3\.00 GiB are available"):
        plan_memory(
            EngineConfig(block_size=16), bytes_per_block=1 << 20, max_num_seqs=8, max_model_len=65536,
            model_context=65536, free=3 * GIB, is_shared=False,
        )


def test_a_model_without_attention_has_blocks_for_everybody() -> None:
    plan = plan_memory(
        EngineConfig(block_size=16), bytes_per_block=0, max_num_seqs=8, max_model_len=0, model_context=1000, free=0
    )
    assert (plan.num_blocks, plan.max_model_len) == (8 * 63, 1000)


def test_recurrent_states_come_first() -> None:
    assert beside_states(10 * GIB, GIB, 4) == 6 * GIB
    with pytest.raises(ConfigError, match=r"max_num_seqs = 11: .* 11\.00 GiB, 10\.00 GiB of memory are free; lower it"):
        beside_states(10 * GIB, GIB, 11)
