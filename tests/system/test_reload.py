"""SIGHUP: keys change, nothing else does."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import httpx

from tests.system.harness import SCRIPTED, Server

BODY = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 200, "ignore_eos": True}


def status(server: Server, key: str) -> int:
    body = BODY | {"max_tokens": 1}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={"x-api-key": key}).status_code


def wait_until(server: Server, key: str, expected: int) -> None:
    deadline = time.monotonic() + 20
    while status(server, key) != expected:
        assert time.monotonic() < deadline, server.log
        threading.Event().wait(0.02)


def test_sighup_reads_the_keys_again_under_open_streams(embedded_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    overrides = (
        f"server.api_keys_file={keys}", "server.http_workers=2", "log.access=true", "engine.scripted_step_us=5000",
    )  # fmt: skip
    with Server(embedded_model, *SCRIPTED, *overrides) as server:
        pids = {process.pid for process in server.workers()}
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=BODY | {"stream": True}, headers={"x-api-key": "old"}) as stream:
            lines = stream.iter_lines()
            next(lines)
            keys.write_text("new\n")
            server.signal(signal.SIGHUP)
            for _ in range(4):  # either worker may answer
                wait_until(server, "new", 200)
                wait_until(server, "old", 401)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert {process.pid for process in server.workers()} == pids
        assert server.stop() == 0
        access = [json.loads(line) for line in server.lines if line.startswith("{")]
        assert {line["status"] for line in access} == {200, 401}
        assert max(line.get("completion_tokens", 0) for line in access) == 200
        assert "three" not in "".join(line for line in server.lines if line.startswith("{"))
