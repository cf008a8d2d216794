"""Compiles kernels that no decode step launches, for the targets named. A process of its own, as offline_compile."""

from __future__ import annotations

import sys

import torch

from kernels.draw_tokens import DrawFilters, draw_tokens
from tests.kernels.offline_compile import AMD, NVIDIA, Recorder


def draws() -> None:
    ones = torch.ones(2)
    filters = DrawFilters(ones.long(), ones, ones, has_top_k=True, has_top_p=True)
    for some in (filters, None):
        draw_tokens(torch.zeros(2, 5000), ones, torch.zeros(2, 2, dtype=torch.int32), some)


def compile_all(name: str) -> int:
    recorder = Recorder((NVIDIA | AMD)[name])
    recorder.record(draws)
    return len(recorder.compiled)


if __name__ == "__main__":
    for target_name in sys.argv[1:]:
        print(target_name, compile_all(target_name), flush=True)
