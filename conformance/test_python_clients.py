"""LiteLLM and LangChain, which have an environment of their own: what they need is not what we are tested with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.api.app_server import AppServer

CLIENTS = Path(__file__).parent / "clients"


@pytest.mark.parametrize("script", sorted(CLIENTS.glob("*.py")), ids=lambda script: script.stem)
def test_client(app: AppServer, clients_python: Path, script: Path) -> None:
    run = subprocess.run(
        [str(clients_python), str(script), app.url], capture_output=True, text=True, timeout=110, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
