"""The CPU kernels' half of loading.py. Knows what covers a model; never cases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cpu.coverage import why_not_covered
from sparkinfer.model.cpu.loader import load_cpu_model
from sparkinfer.model.registry import Model


def is_covered(hparams: HParams, say: Callable[[str], None]) -> bool:
    """Whether the kernels run this model on this machine; says why not."""
    reason = why_not_covered(hparams)
    if reason is not None:
        say(f"torch's own operations in f32 instead of CPU kernels: {reason}")
    return reason is None


def load(gguf: GGUFFile, hparams: HParams, num_threads: int) -> Model:
    """The model on packed weights; torch keeps one thread, for sampling."""
    torch.set_num_threads(1)
    return load_cpu_model(gguf, hparams, num_threads, lambda done, total: None)
