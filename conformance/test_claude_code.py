"""Claude Code in print mode."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from conformance.scripted import MARK, told_to_call
from tests.api.app_server import AppServer
from tests.system.harness import Server


def claude(npm_bin: Path, home: Path, url: str, prompt: str, *options: str) -> list[dict[str, Any]]:
    """What it prints, an object a line."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CLAUDE", "ANTHROPIC"))}
    environment = kept | {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "local",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "local",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "128",
        "DISABLE_AUTOUPDATER": "1",
    }
    command = [str(npm_bin / "claude"), "-p", prompt, "--output-format", "stream-json", "--verbose", *options]
    run = subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert run.stdout, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_it_runs_a_tool(app: AppServer, npm_bin: Path, tmp_path: Path) -> None:
    printed = claude(npm_bin, tmp_path, app.url, "Call the tool.", "--allowedTools", "Bash")
    blocks = [block["type"] for line in printed if line["type"] == "assistant" for block in line["message"]["content"]]
    assert blocks == ["thinking", "text", "tool_use", "thinking", "text"]
    result = printed[-1]
    assert (result["type"], result["is_error"], result["num_turns"]) == ("result", False, 2)
    assert MARK in result["result"]
    requests = [app.pool.submitted.get() for _ in range(app.pool.submitted.qsize())]
    assert len(requests[0].prompt.tools) > 10  # all of its own are taken
    assert not any("x-anthropic-billing-header" in (m.content or "") for r in requests for m in r.prompt.messages)


def test_it_counts_the_prompt_as_read(app: AppServer, npm_bin: Path, tmp_path: Path) -> None:
    usage = claude(npm_bin, tmp_path, app.url, "Say hello.", "--tools", "")[-1]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 7


def test_the_embedded_model_answers(server: Server, npm_bin: Path, tmp_path: Path) -> None:
    options = ("--tools", "", "--system-prompt", "You are a helpful assistant.")
    printed = claude(npm_bin, tmp_path, server.url, "Say hello.", *options)
    answers = [line["message"] for line in printed if line["type"] == "assistant"]
    assert answers[0]["content"][0]["text"]
    assert answers[0]["usage"]["input_tokens"] > 50
    assert printed[-1]["usage"]["output_tokens"] > 0  # so small a model may not come to an end within its limit


def test_a_call_through_all_processes(scripted_server: Server, npm_bin: Path, tmp_path: Path) -> None:
    options = ("--tools", "Bash", "--allowedTools", "Bash", "--system-prompt", "You are a helpful assistant.")
    printed = claude(npm_bin, tmp_path, scripted_server.url, told_to_call("Bash"), *options)
    results = [line["tool_use_result"]["stdout"] for line in printed if line["type"] == "user"]
    assert results == [MARK]
    assert (printed[-1]["is_error"], printed[-1]["result"]) == (False, "That was all.")


def test_a_prompt_that_is_too_long_is_understood(server: Server, npm_bin: Path, tmp_path: Path) -> None:
    result = claude(npm_bin, tmp_path, server.url, "Say hello.")[-1]  # with all tools: some 20,000 tokens
    assert result["is_error"]
    assert "Prompt is too long" in result["result"]
    assert "limit 8192" in result["result"]
