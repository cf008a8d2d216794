"""What a slot of the decode kernels' pools keeps moves and goes as one, updates that states lack among it."""

from __future__ import annotations

from pathlib import Path

import torch

from kernels.held_updates import HELD
from kernels.reference.held_updates import settled
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.scheduler_output import StateCopy
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.engine.snapshot_store import SnapshotStore
from sparkinfer.model.cuda.pools import CudaPools, DecodePools, RingStatePool
from tests.kernels.random_model import random_held
from tests.model.tiny import tiny_gguf

CPU = torch.device("cpu")


def hparams_of(architecture: str, folder: Path) -> HParams:
    return HParams.from_gguf(GGUFFile.open(tiny_gguf(architecture, folder)))


def test_slots_take_their_updates_along(tmp_path: Path) -> None:
    hparams = hparams_of("qwen35moe", tmp_path)
    pool = RingStatePool(hparams, 3, CPU)
    views = DecodePools.of(CudaPools(KVCache(hparams, 2, 16, torch.float32, CPU), pool))
    layers = [i for i, held in enumerate(views.held) if held is not None]
    assert layers == [i for i, state in enumerate(views.state) if state is not None]
    heads = hparams.ssm_group_count + hparams.ssm_time_step_rank
    expected = []
    for layer in layers:
        state, held = views.state[layer], views.held[layer]
        assert held.shape == (3, heads, HELD, hparams.ssm_state_size)
        state.normal_()
        held.copy_(random_held(state, hparams.ssm_group_count))
        expected.append(settled(state, held)[1])
    store = SnapshotStore(pool)
    store.copy([StateCopy(SlotId(1), SnapshotId(0), False, None)])
    saved = store.to_bytes(SnapshotId(0))
    assert len(saved) == pool.bytes_per_slot
    views.reset(1)
    assert all(not settled(views.state[layer], views.held[layer])[1].any() for layer in layers)
    store.copy([StateCopy(SlotId(2), SnapshotId(1), True, saved), StateCopy(SlotId(2), SnapshotId(1), True, None)])
    for layer, state in zip(layers, expected, strict=True):
        assert torch.equal(settled(views.state[layer], views.held[layer])[2], state)


def test_models_without_recurrence_hold_nothing(tmp_path: Path) -> None:
    pool = RingStatePool(hparams_of("llama", tmp_path), 3, CPU)
    assert pool.held == [None, None]
    assert pool.bytes_per_slot == 0
