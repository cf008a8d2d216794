"""Compiles kernels that no decode step launches, for the targets named. A process of its own, as offline_compile."""

from __future__ import annotations

import sys

import torch

from kernels.draw_tokens import DrawFilters, draw_tokens
from kernels.quant_embedding import quant_embedding
from kernels.quant_format import QuantFormat
from kernels.quant_gemv import quant_gemv
from kernels.quant_gemv_residual import quant_gemv_residual
from kernels.quant_swiglu import quant_swiglu
from tests.kernels.activations import poisoned_activation
from tests.kernels.offline_compile import AMD, NVIDIA, Recorder
from tests.kernels.random_weights import random_weight


def draws() -> None:
    ones = torch.ones(2)
    filters = DrawFilters(ones.long(), ones, ones, has_top_k=True, has_top_p=True)
    for some in (filters, None):
        draw_tokens(torch.zeros(2, 5000), ones, torch.zeros(2, 2, dtype=torch.int32), some)


def other_formats() -> None:
    """Formats that the tiny models of offline_compile do not have, one row and several."""
    for kind in (QuantFormat.F16, QuantFormat.BF16, QuantFormat.NVFP4):
        weight = random_weight(64, 256, kind)
        for num_tokens in (1, 6):
            x, out = poisoned_activation(num_tokens, 256), poisoned_activation(num_tokens, 64)
            quant_gemv(x, [weight, random_weight(64, 256, QuantFormat.Q4_K)], 1e-6, torch.empty(num_tokens, 128))
            quant_gemv_residual(x, weight, torch.empty(num_tokens, 64), torch.empty(64), out, group=128, eps=1e-6)
            quant_swiglu(x, weight, weight, out, 1e-6)
        quant_embedding(torch.zeros(1, dtype=torch.int64), weight, torch.empty(1, 256))


def compile_all(name: str) -> int:
    recorder = Recorder((NVIDIA | AMD)[name])
    recorder.record(draws)
    if name in ("sm_80", "sm_90", "gfx942"):  # formats differ no further between cards
        recorder.record(other_formats)
    return len(recorder.compiled)


if __name__ == "__main__":
    for target_name in sys.argv[1:]:
        print(target_name, compile_all(target_name), flush=True)
