"""Compiles, without an accelerator, whatever a host function launches, for a list of targets.

Run as a process of its own: kernels must be real JIT functions, not the interpreter's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from kernels.dequantize import dequantize
from kernels.few_rows import MIN_ROWS
from sparkinfer.model.cuda.decode import DecodeStep
from tests.kernels.prompt_launches import launch_prompt_kernels
from tests.kernels.random_model import TINY_DENSE, TINY_HYBRID, random_inputs, random_model

NVIDIA = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 89, 90, 120)}
AMD = {"gfx942": GPUTarget("hip", "gfx942", 64), "gfx1100": GPUTarget("hip", "gfx1100", 32)}
_OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")


@dataclass
class Recorder:
    """Stands in for the driver: every launch inside `record` becomes one compilation for `target`."""

    target: GPUTarget
    compiled: list[Any] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)

    def record(self, function: Callable[[], object]) -> list[Any]:
        original = JITFunction.run
        recorder = self

        def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            recorder._compile(kernel, args, kwargs)

        JITFunction.run = run
        try:
            function()
        finally:
            JITFunction.run = original
        return self.compiled

    def _compile(self, kernel: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        if self.target.backend == "hip":
            options.pop("launch_pdl", None)
            bound = {name: False if name in ("NATIVE", "PDL") else value for name, value in bound.items()}
        key = (kernel.__name__, str({p.name: bound[p.name] for p in kernel.params if p.is_constexpr}))
        if key in self.seen:
            return
        self.seen.add(key)
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(kernel.params):
            value = bound[parameter.name]
            if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[parameter.name] = "constexpr"
                constants[parameter.name] = value
                continue
            signature[parameter.name] = mangle_type(value)
            if value % 16 == 0 if isinstance(value, int) else hasattr(value, "data_ptr"):
                attributes[(index,)] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, signature, constants, attributes)
        self.compiled.append(triton.compile(source, target=self.target, options=options))


def compile_decode_steps(name: str) -> int:
    """Number of kernels that tiny models' decode steps launch, each compiled for target `name`."""
    target = (NVIDIA | AMD)[name]
    pdl = target.backend == "cuda" and int(target.arch) >= 90
    recorder = Recorder(target)
    cpu = torch.device("cpu")
    steps = [(TINY_HYBRID, 1)]
    if name in ("sm_80", "sm_90"):  # tensor-core kernels and int8 caches differ no further between cards
        steps.append((TINY_DENSE, MIN_ROWS))
    for shape, num_seqs in steps:
        weights = random_model(shape, "cpu")
        inputs = random_inputs(shape, weights, num_seqs, 20, "cpu", is_int8=num_seqs > 1)
        recorder.record(lambda w=weights, i=inputs, n=num_seqs: DecodeStep(w, n, cpu, pdl).run(i))
        plain = torch.empty(weights.output.num_rows, weights.output.num_cols, dtype=torch.float16)
        recorder.record(lambda w=weights.output, y=plain: dequantize(w, y))
    recorder.record(launch_prompt_kernels)
    return len(recorder.compiled)


if __name__ == "__main__":
    for target_name in sys.argv[1:]:
        print(target_name, compile_decode_steps(target_name), flush=True)
