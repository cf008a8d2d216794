"""Starts that must fail: one clear line, the right exit code, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from tests.checkpoint.builder import HIDDEN, Tensor, gguf_bytes, model_metadata, model_tensors
from tests.system.harness import ROOT, SCRIPTED, Server, one_line, run_supervisor, shared_memory_names


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("server.prot=1", ["[server] prot", "did you mean port"]),
        ("servr.port=1", ["[servr]", "did you mean server"]),
        ("server.port=0", ["[server] port", "1 to 65535"]),
        ("server.port=eighty", ["[server] port", "integer"]),
        ("engine.runner=magic", ["[engine] runner", "model, scripted"]),
        ("scheduler.policy=lottery", ["[scheduler] policy", "continuous"]),
        ('server.api_keys=["a","b"]', ["[server] api_keys", "commas"]),
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


def test_not_a_file() -> None:
    assert "not a file" in one_line(run_supervisor("--config", "/dev/zero").stderr)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("server.host=no such host", ["[server] host", "no such host"]),
        ("server.host=203.0.113.1", ["[server] host", "203.0.113.1"]),
        ("engine.device=banana", ["[engine] device", "cuda:N"]),
        ("model.name=a\nb", ["[model] name", "printable"]),
        (f"server.run_dir=/tmp/{'x' * 120}", ["[server] run_dir", "too long"]),
    ],
)
def test_setting_that_cannot_work(embedded_model: Path, setting: str, words: list[str]) -> None:
    settings = (f"model.path={embedded_model}", "server.port=19874", setting)
    result = run_supervisor(*(word for s in settings for word in ("--set", s)))
    assert result.returncode == 4
    line = one_line(result.stderr)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("pinned_tokens=1,two", ["pinned_tokens", "'two' is not a token id"]),
        ("pinned_tokens=-1", ["pinned_tokens", "'-1'"]),
        ("pinned_tokens_file={tmp}/none.json", ["pinned_tokens_file", "No such file"]),
        ("pinned_tokens_file={tmp}/dict.json", ["pinned_tokens_file", "JSON list"]),
        ("pinned_tokens_file={tmp}/float.json", ["pinned_tokens_file", "1.5 is not a token id"]),
        ("directory={tmp}/dict.json", ["directory", "is not a directory"]),
        ("directory=/proc/self/cache", ["directory", "not writable"]),
    ],
)
def test_prefix_cache_settings_are_checked_without_a_start(tmp_path: Path, setting: str, words: list[str]) -> None:
    (tmp_path / "dict.json").write_text('{"1": 2}')
    (tmp_path / "float.json").write_text("[1, 1.5]")
    setting = "prefix_cache." + setting.format(tmp=tmp_path)
    result = run_supervisor("--set", setting, "--check-config")
    assert result.returncode == 4
    line = one_line(result.stderr)
    assert all(word in line for word in ["[prefix_cache]", *words]), line
    off = run_supervisor("--set", setting, "--set", "prefix_cache.enabled=false", "--check-config")
    assert (off.returncode, off.stdout) == (0, "configuration OK\n")


@pytest.mark.parametrize(
    ("directory", "words"), [("{tmp}/file", "is not a directory"), ("/proc/self/x", "not writable")]
)
def test_the_directory_of_responses_is_checked_without_a_start(tmp_path: Path, directory: str, words: str) -> None:
    (tmp_path / "file").touch()
    result = run_supervisor("--set", f"server.responses_directory={directory.format(tmp=tmp_path)}", "--check-config")
    line = one_line(result.stderr)
    assert (result.returncode, "[server] responses_directory" in line, words in line) == (4, True, True), line


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tls_cert={tmp}/file", "tls_key: give both"), ("unix_socket={tmp}/no/x", "there is no folder"),
        ("unix_socket={tmp}/file", "no socket"), ("api_keys_file={tmp}/none", "No such file"),
    ],
)
def test_files_of_the_listener_are_checked_without_a_start(tmp_path: Path, setting: str, words: str) -> None:
    (tmp_path / "file").touch()
    result = run_supervisor("--set", "server." + setting.format(tmp=tmp_path), "--check-config")
    line = one_line(result.stderr)
    assert (result.returncode, "[server]" in line, words in line) == (4, True, True), line


def test_a_pinned_prefix_longer_than_the_context(embedded_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps([5] * 8191))
    settings = (f"model.path={embedded_model}", f"prefix_cache.pinned_tokens_file={path}", "server.port=19875")
    result = run_supervisor(*(word for s in (*settings, *SCRIPTED) for word in ("--set", s)))
    assert result.returncode == 4
    assert "pinned tokens: 8191 are too many" in result.stderr
    assert "Traceback" not in result.stderr


def test_run_dir_keeps_what_it_held(embedded_model: Path) -> None:
    """The operator may name any folder; only our own fresh one in it is removed."""
    with tempfile.TemporaryDirectory(prefix="si-", dir="/tmp") as folder:  # short: sockets' paths have a limit
        run_dir = Path(folder)
        (run_dir / "metrics").mkdir()
        (run_dir / "metrics" / "precious.txt").write_text("keep me")
        server = Server(embedded_model, *SCRIPTED, f"server.run_dir={run_dir}")
        server.wait_ready()
        assert server.stop() == 0
        assert [str(p.relative_to(run_dir)) for p in run_dir.rglob("*")] == ["metrics", "metrics/precious.txt"]


def test_second_server_on_the_same_port(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED) as server:
        result = run_supervisor("--set", f"server.port={server.port}", "--set", f"model.path={embedded_model}")
    assert result.returncode == 3
    assert "is in use" in one_line(result.stderr)


def test_two_servers_started_together(embedded_model: Path) -> None:
    """Whichever claims the port first serves; the other one says so and exits."""
    first = Server(embedded_model, *SCRIPTED)
    second = Server(embedded_model, *SCRIPTED, f"server.port={first.port}")
    deadline = time.monotonic() + 30
    while first.process.poll() is None and second.process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    loser, winner = (first, second) if first.process.poll() is not None else (second, first)
    assert loser.stop() == 3
    assert "is in use" in loser.log
    winner.wait_ready()
    assert winner.stop() == 0


def test_host_names_resolve(embedded_model: Path) -> None:
    with Server(embedded_model, *SCRIPTED, "server.host=localhost") as server:
        assert "READY  http://" in server.log


def test_nobody_reads_the_output(embedded_model: Path) -> None:
    """`supervisor.py | head -1` must not end the server."""
    read_end, write_end = os.pipe()
    command = [sys.executable, str(ROOT / "supervisor.py"), "--model", str(embedded_model), "--port", "19873"]
    server = subprocess.Popen([*command, "--set", "engine.runner=scripted"], stdout=write_end, stderr=write_end)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get("http://127.0.0.1:19873/ready", timeout=5).status_code == 200:
                break
        time.sleep(0.05)
    server.terminate()
    assert server.wait(20) == 0


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


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    """A sparse file: its feed-forward tensors claim 192 GiB, of which nothing is on the disk."""
    width = 1 << 30
    metadata = model_metadata("llama", 1) | {"llama.feed_forward_length": width}
    tensors = model_tensors("llama", 1)
    start = sum(-(-len(tensor.data()) // 32) * 32 for tensor in tensors.values())
    for number, name in enumerate(("gate", "up", "down")):
        shape = (HIDDEN, width) if name == "down" else (width, HIDDEN)
        tensors[f"blk.0.ffn_{name}.weight"] = Tensor(shape, raw=b"", offset=start + number * width * HIDDEN * 4)
    path = tmp_path / "huge.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + start + 3 * width * HIDDEN * 4)
    result = run_supervisor("--set", f"model.path={path}", "--set", "server.port=19873")
    assert result.returncode == 4
    assert "huge.gguf: the weights take 192.00 GiB as float32" in result.stderr
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
