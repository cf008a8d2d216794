"""Compiles attention's kernels in a process of its own while another one loads weights; run as a module, or started.

Knows which kernels every model needs; nothing of models.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba

from kernels.cpu import compile_cache

ROOT = Path(__file__).resolve().parents[2]
_started: list[subprocess.Popen[bytes]] = []


def start(kind: str) -> None:
    """Compile into the folder in use, for a pool of `kind`, unless that was done before."""
    folder = Path(numba.config.CACHE_DIR)
    if not any(folder.glob(f"*/attention.attend_kernel_{kind}*")):
        command = [sys.executable, "-m", "kernels.cpu.compile_ahead", str(folder.parent), kind]
        _started.append(subprocess.Popen(command, cwd=ROOT))


def wait() -> None:
    """Until what was started is done; whatever it did not manage is compiled when it is needed."""
    while _started:
        _started.pop().wait()


def main() -> None:
    """Arguments: the folder's parent, the kind."""
    compile_cache.use_folder(Path(sys.argv[1]))
    from kernels.cpu.attention import attend_kernel, finish_kernel
    from kernels.cpu.rope_store import rope_store_kernel

    for kernel in (attend_kernel(sys.argv[2]), rope_store_kernel, finish_kernel):
        kernel.compile()


if __name__ == "__main__":
    main()
