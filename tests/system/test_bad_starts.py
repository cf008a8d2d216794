"""Starts that must fail: one clear line, the right exit code, nothing left behind."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.harness import ROOT, one_line, run_supervisor, shared_memory_names


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("server.prot=1", ["[server] prot", "did you mean port"]),
        ("servr.port=1", ["[servr]", "did you mean server"]),
        ("server.port=0", ["[server] port", "1 to 65535"]),
        ("server.port=eighty", ["[server] port", "integer"]),
        ("engine.runner=magic", ["[engine] runner", "model, scripted"]),
        ("scheduler.policy=lottery", ["[scheduler] policy", "continuous"]),
        ("nonsense", ["section.key=value"]),
    ],
)
def test_bad_setting(setting: str, words: list[str]) -> None:
    result = run_supervisor("--set", setting)
    assert result.returncode == 4
    line = one_line(result.stderr)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1\n", ["bad.toml", "[server] prot", "did you mean port"]),
        ("[server]\nport = '80'\n", ["bad.toml", "[server] port", "integer"]),
        ("[server\n", ["bad.toml", "not valid TOML"]),
        ("port = 1\n", ["bad.toml", "port", "outside a section"]),
        ("[server]\napi_keys = [1]\n", ["bad.toml", "api_keys", "ASCII strings"]),
    ],
)
def test_bad_file(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    result = run_supervisor("--config", str(path))
    assert result.returncode == 4
    line = one_line(result.stderr)
    assert all(word in line for word in words), line


def test_missing_file(tmp_path: Path) -> None:
    result = run_supervisor("--config", str(tmp_path / "none.toml"))
    assert result.returncode == 4
    assert "none.toml" in one_line(result.stderr)


@pytest.mark.parametrize("name", ["dev.toml", "prod.toml"])
def test_shipped_files_are_valid(name: str) -> None:
    result = run_supervisor("--config", str(Path("ops") / name), "--check-config")
    assert (result.returncode, result.stdout) == (0, "configuration OK\n")


def test_version() -> None:
    assert run_supervisor("--version").stdout.startswith("sparkinfer ")


def test_port_in_use(embedded_model: Path) -> None:
    before = shared_memory_names()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run_supervisor("--set", f"server.port={port}", "--set", f"model.path={embedded_model}")
    assert result.returncode == 3
    assert f"127.0.0.1:{port} is in use" in one_line(result.stderr)
    assert shared_memory_names() == before


def test_model_missing(tmp_path: Path) -> None:
    result = run_supervisor("--set", f"model.path={tmp_path}/none.gguf")
    assert result.returncode == 4
    assert "none.gguf" in one_line(result.stderr)


def test_not_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "cat.gguf"
    path.write_bytes(b"meow" * 1000)
    result = run_supervisor("--set", f"model.path={path}")
    assert result.returncode == 4
    assert "cat.gguf" in one_line(result.stderr)


def test_truncated_model(tmp_path: Path, embedded_model: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(embedded_model.read_bytes()[: 40 << 20])
    result = run_supervisor("--set", f"model.path={path}")
    assert result.returncode == 4
    assert "half.gguf" in one_line(result.stderr)


def test_context_that_cannot_be_held(embedded_model: Path) -> None:
    result = run_supervisor(
        "--set", f"model.path={embedded_model}", "--set", "model.max_model_len=8192",
        "--set", "engine.kv_cache_gib=0.01", "--set", "server.port=19871",
    )
    assert result.returncode == 4
    assert "max_model_len" in result.stderr
    assert "Traceback" not in result.stderr


def test_no_room_for_shared_memory(embedded_model: Path) -> None:
    """A file-size limit refuses the first segment, as a full machine would."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "supervisor.py"), "--set", f"model.path={embedded_model}",
         "--set", "server.port=19872"],
        capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )
    assert result.returncode == 3
    assert "no room for shared segment" in one_line(result.stderr)
