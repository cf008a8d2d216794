"""What saving recurrent state costs a decode step on the card, with states of 63 MB (Qwen3.5-35B-A3B's) and 149 MB.

    python ops/bench/gpu_snapshots.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from sparkinfer.engine.scheduler_output import StateCopy
from sparkinfer.engine.sequence import SlotId
from sparkinfer.engine.snapshot_pool import SnapshotId
from sparkinfer.engine.snapshot_store import SnapshotStore

NUM_STEPS = 100


def step_time_ms(megabytes: int, saves_per_step: int) -> float:
    """Milliseconds a step, with so many saves before each."""
    elements = megabytes * 1_000_000 // 4 // 30
    state = torch.zeros(30, 16, elements, device="cuda")
    store = SnapshotStore(SimpleNamespace(pools=[state]))
    weights = torch.zeros(1 << 30, device="cuda")

    def step() -> None:
        for _ in range(8):  # about what a step of 64 sequences reads
            weights.sum()

    for warm in range(NUM_STEPS + 20):
        if warm == 20:
            torch.cuda.synchronize()
            started = time.perf_counter()
        rows = [(warm * saves_per_step + i) % 16 for i in range(saves_per_step)]
        store.copy([StateCopy(SlotId(row), SnapshotId(row), restores=False) for row in rows])
        step()
    torch.cuda.current_stream().synchronize()
    return (time.perf_counter() - started) * 1e3 / NUM_STEPS


def main() -> None:
    print("state MB  saves a step  ms a step")
    for megabytes in (63, 149):
        for saves in (0, 1, 2, 4):
            print(f"{megabytes:8d}  {saves:12d}  {step_time_ms(megabytes, saves):9.3f}")


if __name__ == "__main__":
    main()
