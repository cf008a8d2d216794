"""Fixtures that several parts of the suite share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Triton reads this when a kernel's module is loaded, by whichever test comes first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Two cores are shared by the forward and its surroundings: let idle OpenMP threads give way at once.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, cache_dir
from tests.interpreter import patch_language_once_a_launch
from tests.interpreter_bounds import confine_to_tensors

patch_language_once_a_launch()
confine_to_tensors()


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded default model on disk; fetched once into the user's cache."""
    return resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))
