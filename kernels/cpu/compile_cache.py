"""Where compiled kernels are kept: a folder that changes with the sources, so that none outlives what it is made of.

numba by itself looks at the file of a function alone, not at the functions and generators that went into it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numba

HERE = Path(__file__).parent


def sources_digest() -> str:
    """Of every source in this folder, and the compiler's version."""
    digest = hashlib.sha256(f"{numba.__version__} ".encode())
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_folder(folder: Path) -> None:
    """Keep compiled kernels below `folder` unless NUMBA_CACHE_DIR says otherwise; to be called before their import."""
    base = Path(numba.config.CACHE_DIR or folder)
    if base.name != sources_digest():
        numba.config.CACHE_DIR = str(base / sources_digest())
