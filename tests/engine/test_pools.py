"""The memory that sequences live in: sizes as promised, layers as the model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache, bytes_per_block
from sparkinfer.engine.state_pool import StatePool, bytes_per_slot
from tests.model.tiny import tiny_gguf

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def hparams_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HParams]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return lambda architecture: HParams.from_gguf(GGUFFile.open(tiny_gguf(architecture, folder)))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_kv_cache_takes_what_was_promised(
    architecture: str, dtype: torch.dtype, hparams_of: Callable[[str], HParams]
) -> None:
    hparams = hparams_of(architecture)
    cache = KVCache(hparams, num_blocks=5, block_size=16, dtype=dtype, device=CPU)
    pools = [pool for pool in (*cache.k, *cache.v) if pool is not None]
    scales = [scale for scale in (*cache.k_scale, *cache.v_scale) if scale is not None]
    assert sum(pool.nbytes for pool in pools + scales) == 5 * bytes_per_block(hparams, 16, dtype)
    assert len(scales) == (len(pools) if dtype == torch.int8 else 0)
    assert {pool.shape for pool in pools} == {(80, hparams.num_kv_heads, hparams.head_dim)}
    assert len(pools) == 2 * hparams.num_attention_layers


def test_state_pool_takes_what_was_promised(hparams_of: Callable[[str], HParams]) -> None:
    hparams = hparams_of("qwen35moe")
    pool = StatePool(hparams, num_slots=3, device=CPU)
    tensors = [tensor for tensor in (*pool.conv, *pool.state) if tensor is not None]
    assert sum(tensor.nbytes for tensor in tensors) == 3 * bytes_per_slot(hparams)
    assert pool.bytes_per_slot == bytes_per_slot(hparams)
    assert [state is None for state in pool.state] == [kind == "attention" for kind in hparams.layer_types]
    assert pool.layer(0)[0].shape == (3, 512, 3)
    assert pool.layer(0)[1].shape == (3, 4, 64, 64)


def test_reset_zeroes_only_its_slots(hparams_of: Callable[[str], HParams]) -> None:
    pool = StatePool(hparams_of("qwen35"), num_slots=4, device=CPU)
    for tensor in pool.layer(0):
        tensor.fill_(1.0)
    pool.reset(torch.tensor([2, 0]))
    for tensor in pool.layer(0):
        assert [bool((row == 1).all()) for row in tensor] == [False, True, False, True]
        assert not tensor[[0, 2]].any()


def test_models_without_recurrence_keep_no_state(hparams_of: Callable[[str], HParams]) -> None:
    hparams = hparams_of("llama")
    pool = StatePool(hparams, num_slots=4, device=CPU)
    pool.reset(torch.tensor([1]))
    assert bytes_per_slot(hparams) == pool.bytes_per_slot == 0
    assert pool.state == [None, None]
