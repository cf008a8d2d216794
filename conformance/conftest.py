"""Servers and clients that the conformance tests share. `make conformance` installs the clients below .venv."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.scripted import call_once
from sparkinfer.checkpoint.fetch import resolve
from sparkinfer.config import DEFAULT_MODEL, ModelConfig, ServerConfig, cache_dir
from tests.api.app_server import AppServer
from tests.system.harness import SCRIPTED, Server

ENVIRONMENT = Path(sys.prefix)


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """An interpreter with LiteLLM and LangChain, apart from ours."""
    return ENVIRONMENT / "clients" / "bin" / "python"


@pytest.fixture(scope="session")
def npm_bin() -> Path:
    """Where the command lines of Claude Code and Codex are."""
    return ENVIRONMENT / "npm" / "node_modules" / ".bin"


@pytest.fixture
def app() -> Iterator[AppServer]:
    """Everything that HTTP clients see, over a model that calls tools."""
    with AppServer(ServerConfig(max_body_mib=64)) as running:
        running.pool.script = call_once
        yield running


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    return resolve(DEFAULT_MODEL, cache_dir(ModelConfig()))


@pytest.fixture(scope="session")
def server(embedded_model: Path) -> Iterator[Server]:
    """All processes, with the embedded model."""
    with Server(embedded_model, "scheduler.max_num_seqs=8") as running:
        yield running


@pytest.fixture(scope="session")
def scripted_server(embedded_model: Path) -> Iterator[Server]:
    """All processes, with a model that says what the prompt tells it to."""
    with Server(embedded_model, *SCRIPTED, "model.max_output_tokens=256") as running:
        yield running
