"""Compiles the largest kernels in a process of its own while another one loads weights; run as a module, or started.

Knows which kernels every model needs; nothing of models.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba

from kernels.cpu import compile_cache

NAMES = ("attend_kernel_f16", "rope_store_kernel", "finish_kernel")
ROOT = Path(__file__).resolve().parents[2]


def start() -> subprocess.Popen[bytes] | None:
    """Compile into the folder in use; None where something was compiled there before."""
    folder = Path(numba.config.CACHE_DIR)
    if folder.exists():
        return None
    return subprocess.Popen([sys.executable, "-m", "kernels.cpu.compile_ahead", str(folder.parent)], cwd=ROOT)


def main() -> None:
    """Compile NAMES into the folder that is the first argument."""
    compile_cache.use_folder(Path(sys.argv[1]))
    from kernels.cpu.attention import attend_kernel, finish_kernel
    from kernels.cpu.rope_store import rope_store_kernel

    for kernel in (attend_kernel("f16"), rope_store_kernel, finish_kernel):
        assert kernel.name in NAMES
        kernel.compile()


if __name__ == "__main__":
    main()
