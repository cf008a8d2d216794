"""Compiles, without an accelerator, whatever a host function launches, for a list of targets.

Run as a process of its own: kernels must be real JIT functions, not the interpreter's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

NVIDIA = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 89, 90, 120)}
AMD = {"gfx942": GPUTarget("hip", "gfx942", 64), "gfx1100": GPUTarget("hip", "gfx1100", 32)}
_OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")


@dataclass
class Recorder:
    """Stands in for the driver: every launch inside `record` becomes one compilation for `target`."""

    target: GPUTarget
    compiled: list[Any] = field(default_factory=list)

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
        if self.target.backend == "hip":
            options.pop("launch_pdl", None)
        kwargs = {"PDL": False, **kwargs} if self.target.backend == "hip" and "PDL" in kwargs else kwargs
        bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        if self.target.backend == "hip":
            bound = {name: False if name in ("NATIVE", "PDL") else value for name, value in bound.items()}
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(kernel.params):
            value = bound[parameter.name]
            if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[parameter.name] = "constexpr"
                constants[parameter.name] = value
                continue
            signature[parameter.name] = mangle_type(value)
            aligned = value % 16 == 0 if isinstance(value, int) else hasattr(value, "data_ptr")
            if aligned:
                attributes[(index,)] = [["tt.divisibility", 16]]
        self.compiled.append(triton.compile(ASTSource(kernel, signature, constants, attributes), target=self.target, options=options))
