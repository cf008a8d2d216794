"""The tiny models, loaded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from sparkinfer.model.registry import Model
from tests.model.driver import load
from tests.model.tiny import tiny_gguf


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # the models are too small to share


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return lambda architecture: tiny_gguf(architecture, folder)


@pytest.fixture(scope="session")
def tiny_model(tiny_path: Callable[[str], Path]) -> Callable[[str], Model]:
    @cache
    def model(architecture: str) -> Model:
        return load(tiny_path(architecture))

    return model
