"""Snapshots on the card: saved beside the steps that follow, restored behind every save."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sparkinfer.engine.scheduler_output import StateCopy
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.engine.snapshot_store import MAX_STAGED, SnapshotStore

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

NUM_SLOTS, STATE_ELEMENTS = 3, 8 << 20


def test_a_slot_that_changes_at_once_is_saved_as_it_was() -> None:
    """Many saves of one slot, each overwritten by the next step right behind it; then all are restored."""
    state = torch.zeros(2, NUM_SLOTS, STATE_ELEMENTS, device="cuda")
    store = SnapshotStore(SimpleNamespace(pools=[state]))
    count = 2 * MAX_STAGED
    for value in range(count):
        state[:, 1] = value
        store.copy([StateCopy(SlotId(1), SnapshotId(value), restores=False)])
        state[:, 1] = -1
    for value in (*range(count), 0):
        store.copy([StateCopy(SlotId(2), SnapshotId(value), restores=True)])
        assert (state[:, 2] == value).all()
    store.copy([StateCopy(SlotId(0), SnapshotId(3), restores=False, payload=store.to_bytes(SnapshotId(5)))])
    store.copy([StateCopy(SlotId(0), SnapshotId(3), restores=True)])
    assert (state[:, 0] == 5).all()


def test_a_row_is_not_reused_before_it_was_restored() -> None:
    state = torch.zeros(1, NUM_SLOTS, STATE_ELEMENTS, device="cuda")
    store = SnapshotStore(SimpleNamespace(pools=[state]))
    row = SnapshotId(0)
    for value in range(20):
        state[:, 0] = value
        store.copy([StateCopy(SlotId(0), row, restores=False), StateCopy(SlotId(1), row, restores=True)])
        state[:, 0] = -1
        store.copy([StateCopy(SlotId(0), row, restores=False)])
        assert (state[:, 1] == value).all()
