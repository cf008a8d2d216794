"""LM Studio's SDKs, for Python and for JavaScript, over their WebSockets."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import lmstudio
import pytest

from tests.api.app_server import AppServer
from tests.system.harness import Server

SCRIPT = Path(__file__).parent / "lmstudio_client.mjs"


def javascript(npm_bin: Path, url: str, **environment: str) -> dict[str, Any]:
    """What the script printed."""
    run = subprocess.run(
        ["node", str(SCRIPT), f"{npm_bin.parent}/", url.removeprefix("http://")], capture_output=True, text=True,
        timeout=100, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    printed: dict[str, Any] = json.loads(run.stdout)
    assert printed["warnings"] == []  # of messages that its own schemas refuse
    return printed


def test_javascript_and_the_embedded_model(server: Server, npm_bin: Path) -> None:
    printed = javascript(npm_bin, server.url)
    assert printed["identifier"] in printed["models"]
    assert "".join(printed["pieces"]) == printed["content"] != ""
    assert (printed["context"], printed["stopReason"]) == (8192, "maxPredictedTokensReached")
    assert 1 < printed["tokens"] < 8
    assert printed["completion"]
    assert "No loaded model" in printed["notFound"]


def test_javascript_calls_a_tool(app: AppServer, npm_bin: Path) -> None:
    printed = javascript(npm_bin, app.url, WITH_TOOLS="1")
    assert (printed["city"], printed["rounds"]) == ("Paris", 2)
    assert "The tool said" in printed["said"][-1]


def test_python_and_the_embedded_model(server: Server) -> None:
    with lmstudio.Client(server.url.removeprefix("http://")) as client:
        model = client.llm.model()
        result = model.respond("Say hello.", config={"maxTokens": 8, "temperature": 0})
        assert result.content
        assert result.stats.predicted_tokens_count == 8
        assert len(model.tokenize("One, two")) == model.count_tokens("One, two") > 1
        assert "Say hello." in model.apply_prompt_template("Say hello.")
        schema = {"type": "object", "properties": {"color": {"enum": ["red", "green"]}}, "required": ["color"]}
        assert model.respond("A color?", response_format=schema).parsed["color"] in ("red", "green")
        with pytest.raises(lmstudio.LMStudioModelNotFoundError):
            client.llm.model("no-such-model")


def test_python_calls_a_tool(app: AppServer) -> None:
    def get_weather(city: str) -> str:
        """Weather of a city."""
        return f"18 C in {city}"

    said: list[Any] = []
    with lmstudio.Client(app.url.removeprefix("http://")) as client:
        assert client.llm.model().act("What is the weather?", [get_weather], on_message=said.append).rounds == 2
    assert "The tool said" in str(said[-1])
