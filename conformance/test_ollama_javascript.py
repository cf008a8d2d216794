"""Ollama's client for JavaScript."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.api.app_server import AppServer
from tests.system.harness import Server

SCRIPT = Path(__file__).parent / "ollama_client.mjs"


def javascript(npm_bin: Path, url: str, **environment: str) -> dict[str, Any]:
    """What the script printed."""
    run = subprocess.run(
        ["node", str(SCRIPT), f"{npm_bin.parent}/", url], capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    printed: dict[str, Any] = json.loads(run.stdout)
    return printed


def test_the_embedded_model(server: Server, npm_bin: Path) -> None:
    printed = javascript(npm_bin, server.url)
    assert printed["model"].endswith(":latest")
    assert "tools" in printed["capabilities"]
    assert printed["architecture"] == "llama"
    assert printed["content"]
    assert (printed["last"]["done"], printed["last"]["done_reason"]) == (True, "length")
    assert printed["response"]
    assert "not found" in printed["missing"]


def test_a_call(app: AppServer, npm_bin: Path) -> None:
    printed = javascript(npm_bin, app.url, WITH_TOOLS="1")
    (call,) = printed["called"]["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Paris"}
    assert printed["answered"] == "The tool said: 18 C"
