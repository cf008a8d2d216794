"""Codex in exec mode."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from conformance.scripted import MARK, told_to_call
from sparkinfer.request import FinishReason
from tests.api.app_server import AppServer
from tests.api.scripts import says
from tests.system.harness import Server

CONFIG = """
model = "local"
model_provider = "sparkinfer"
model_instructions_file = "{instructions}"

[model_providers.sparkinfer]
name = "SparkInfer"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def codex(npm_bin: Path, home: Path, url: str, prompt: str) -> list[dict[str, Any]]:
    """The events it prints."""
    instructions = home / "instructions.md"
    instructions.write_text("You are a helpful assistant.")
    settings = home / ".codex"
    settings.mkdir()
    (settings / "config.toml").write_text(CONFIG.format(url=url, instructions=instructions))
    command = [str(npm_bin / "codex"), "exec", "--json", "--skip-git-repo-check",
               "--dangerously-bypass-approvals-and-sandbox", prompt]  # fmt: skip
    environment = os.environ | {"HOME": str(home), "CODEX_HOME": str(settings)}
    run = subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert run.stdout, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def items(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    found = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in found if item["type"] == kind]


def test_it_runs_a_tool(app: AppServer, npm_bin: Path, tmp_path: Path) -> None:
    events = codex(npm_bin, tmp_path, app.url, "Call the tool.")
    (command,) = items(events, "command_execution")
    assert command["exit_code"] == 0
    assert MARK in command["aggregated_output"]
    texts = [item["text"] for item in items(events, "agent_message")]
    assert texts[0] == "Let me see."
    assert MARK in texts[-1]
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["input_tokens"] == 14
    requests = [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())]
    assert requests[-1].prompt.messages[-2].reasoning == "I need a tool."  # it was carried and came back


def test_an_answer_without_room_is_an_answer(app: AppServer, npm_bin: Path, tmp_path: Path) -> None:
    app.pool.script = says(("content", "cut off"), reason=FinishReason.LENGTH)
    events = codex(npm_bin, tmp_path, app.url, "Say hello.")
    assert [item["text"] for item in items(events, "agent_message")] == ["cut off"]
    assert events[-1]["type"] == "turn.completed"
    assert app.pool.submitted.qsize() == 1  # asked once: nothing was retried


def test_a_call_through_all_processes(scripted_server: Server, npm_bin: Path, tmp_path: Path) -> None:
    events = codex(npm_bin, tmp_path, scripted_server.url, told_to_call("exec_command"))
    (command,) = items(events, "command_execution")
    assert MARK in command["aggregated_output"]
    assert [item["text"] for item in items(events, "agent_message")] == ["That was all."]
    assert events[-1]["type"] == "turn.completed"


def test_a_prompt_that_is_too_long_is_understood(server: Server, npm_bin: Path, tmp_path: Path) -> None:
    events = codex(npm_bin, tmp_path, server.url, "word " * 9000)
    assert "context window" in events[-1]["error"]["message"]
