"""Compiles kernels that no decode step launches, for the targets named. A process of its own, as offline_compile."""

from __future__ import annotations

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import mangle_type

from kernels.draw_tokens import DrawFilters, draw_tokens
from kernels.many_rows import FORMATS, STAGES, _many_rows_kernel
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


def many_rows(target: GPUTarget) -> int:
    """The Gluon kernel of every format, and of fewest and most rows for one; returns how many that are."""
    planes = {"q_ptr": "quants", "h_ptr": "high", "s_ptr": "scales", "d_ptr": "supers"}
    tensors = ("x_ptr", "y_ptr", *planes)
    jobs = [(kind, 32) for kind in FORMATS] + [(QuantFormat.Q4_K, 16), (QuantFormat.Q4_K, 128)]
    for kind, num_tokens in jobs:
        weight = random_weight(64, 256, kind)
        constants = {"FMT": int(kind), "COLS": 2048, "M": num_tokens, "SPLITS": 2, "STAGES": STAGES,
                     "HAS_WGMMA": int(target.arch) == 90}
        signature = {name: mangle_type(getattr(weight, plane)) for name, plane in planes.items()}
        signature |= {"x_ptr": "*fp16", "y_ptr": "*fp32", "num_rows": "i32", "stride_y": "i32", "stride_split": "i32"}
        signature |= dict.fromkeys(constants, "constexpr")
        places = _many_rows_kernel.arg_names
        aligned = {(places.index(name),): [["tt.divisibility", 16]] for name in tensors}
        source = GluonASTSource(_many_rows_kernel, signature, constants, aligned)
        compiled = triton.compile(source, target=target, options={"num_warps": 4})
        assert compiled.metadata.shared < 100_000  # what every card has
    return len(jobs)


def compile_all(name: str) -> int:
    recorder = Recorder((NVIDIA | AMD)[name])
    num_gluon = many_rows(recorder.target) if name in NVIDIA else 0
    recorder.record(draws)
    if name in ("sm_80", "sm_90", "gfx942"):  # formats differ no further between cards
        recorder.record(other_formats)
    return len(recorder.compiled) + num_gluon


if __name__ == "__main__":
    for target_name in sys.argv[1:]:
        print(target_name, compile_all(target_name), flush=True)
