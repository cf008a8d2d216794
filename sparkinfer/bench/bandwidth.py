"""Bytes a second that a device copies, read plus written: what the report's percentages refer to."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

GPU_BYTES = 4 << 30
CPU_BYTES = 256 << 20  # beyond any cache
REPEATS = 10


def copy_bandwidth(device: torch.device, num_bytes: int = 0) -> float:
    """Median of REPEATS copies of num_bytes (0: enough) within the device's memory, as torch does them."""
    num_bytes = num_bytes or (CPU_BYTES if device.type == "cpu" else GPU_BYTES)
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    seconds = [_copy_s(source, target) for _ in range(REPEATS + 1)][1:]
    return 2 * num_bytes / statistics.median(seconds)


def _copy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    if not source.is_cuda:
        started = time.perf_counter()
        target.copy_(source)
        return time.perf_counter() - started
    with torch.cuda.device(source.device):
        event: Any = torch.cuda.Event  # torch leaves it untyped
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3
