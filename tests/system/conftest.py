"""Servers shared by the system tests; tests that kill things start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import SCRIPTED, Server


@pytest.fixture(scope="session")
def server(embedded_model: Path) -> Iterator[Server]:
    """The embedded model behind one worker of each kind."""
    with Server(embedded_model, "model.max_model_len=1024", "scheduler.max_num_seqs=16") as running:
        yield running


@pytest.fixture(scope="session")
def scripted_server(embedded_model: Path) -> Iterator[Server]:
    """Everything real but the forward: tokens echo the prompt, one per 2 ms step."""
    overrides = (*SCRIPTED, "engine.scripted_step_us=2000", "model.max_model_len=2048")
    with Server(embedded_model, *overrides) as running:
        yield running


@pytest.fixture(scope="session")
def deterministic_server(embedded_model: Path) -> Iterator[Server]:
    """The embedded model in deterministic mode, prompts in small chunks."""
    settings = ("engine.deterministic=true", "engine.threads=1", "model.max_model_len=256",
                "scheduler.prefill_chunk_tokens=24", "scheduler.policy=chunked")  # fmt: skip
    with Server(embedded_model, *settings) as running:
        yield running
