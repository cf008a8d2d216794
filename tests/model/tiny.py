"""Tiny models with random weights, one per architecture, and what transformers computes from them."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden"
ARCHITECTURES = ("gemma3", "llama", "muse-glimmer", "qwen2", "qwen3", "qwen35", "qwen35moe", "qwen3moe")


def tiny_gguf(architecture: str, folder: Path) -> Path:
    """Path of the tiny model; a compressed one is unpacked into `folder` unless it already lies there."""
    plain = GOLDEN / f"{architecture}.gguf"
    if plain.exists():
        return plain
    unpacked = folder / plain.name
    if not unpacked.exists():
        with lzma.open(GOLDEN / f"{plain.name}.xz") as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target)
    return unpacked


def golden(architecture: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{architecture}.npz") as arrays:
        return dict(arrays)
