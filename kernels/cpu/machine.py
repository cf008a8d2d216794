"""The machine that kernels are compiled for, and their way from LLVM IR to an address. Knows nothing of kernels."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

SPEED_LEVEL = 2  # of LLVM's optimiser; its vectorisers have nothing to do, kernels are written in vectors

_restricted: tuple[str, frozenset[str]] | None = None
_lock = threading.Lock()


def restrict(name: str, features: set[str]) -> None:
    """Compile for another CPU than the host, to be called before anything is compiled: what this one has beyond it is
    not used."""
    global _restricted
    _restricted = name, frozenset(features)


@cache
def _host() -> tuple[str, dict[str, bool]]:
    return llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features())


def cpu_features() -> set[str]:
    """The instruction sets that are compiled for."""
    if _restricted is not None:
        return set(_restricted[1])
    return {name for name, is_present in _host()[1].items() if is_present}


def description() -> str:
    """What compiled code depends on beside its source."""
    name = _restricted[0] if _restricted is not None else _host()[0]
    return f"{llvmlite.__version__} {name} {sorted(cpu_features())}"


@cache
def _target() -> tuple[Any, Any]:
    """A target machine, and an engine that holds what is loaded."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    with contextlib.suppress(RuntimeError):  # a C library that has no libm of its own
        llvm.load_library_permanently("libm.so.6")
    name = _restricted[0] if _restricted is not None else _host()[0]
    has = cpu_features()
    features = ",".join(f"{'+' if feature in has else '-'}{feature}" for feature in sorted(_host()[1]))
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(
        cpu=name, features=features, opt=SPEED_LEVEL, reloc="static", codemodel="jitdefault", jit=True
    )
    return machine, llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def object_of(module: Any) -> bytes:
    """An object file of an IR module."""
    with _lock:
        machine, _ = _target()
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    options = llvm.create_pipeline_tuning_options(SPEED_LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return bytes(machine.emit_object(parsed))


def load(object_file: bytes, name: str) -> int:
    """The address of a function of an object file, which stays in memory."""
    with _lock:
        _, engine = _target()
        engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
        engine.finalize_object()
        address: int = engine.get_function_address(name)
    return address


def callable_at(address: int, num_arguments: int) -> Any:
    """A Python function of whole numbers; it releases the interpreter."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments)(address)
