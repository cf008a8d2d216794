"""A real server for tests: the supervisor as a subprocess on a free port, and ways to look inside its processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
BOOT_TIMEOUT_S = 90.0
SCRIPTED = ("engine.runner=scripted",)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`python supervisor.py` with overrides; a context manager that leaves nothing running."""

    def __init__(self, model: Path, *overrides: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.run_dir = Path(tempfile.mkdtemp(prefix="si-", dir="/tmp"))
        settings = (f"model.path={model}", f"server.port={self.port}", f"server.run_dir={self.run_dir}", *overrides)
        command = [sys.executable, str(ROOT / "supervisor.py"), *(word for s in settings for word in ("--set", s))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Server:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()
            if line.startswith("READY"):
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        assert self._ready.wait(BOOT_TIMEOUT_S), f"not ready:\n{self.log}"
        assert self.process.poll() is None, f"exit {self.process.returncode}:\n{self.log}"

    def wait_said(self, text: str, count: int) -> None:
        """Block until `count` lines of the log hold `text`."""
        with self._said:
            said = self._said.wait_for(lambda: sum(text in line for line in self.lines) >= count, BOOT_TIMEOUT_S)
        assert said, f"not said {count} times: {text}\n{self.log}"

    def wait_ready_again(self) -> None:
        """Block until /ready answers 200, as after a respawn."""
        with httpx.Client() as client:
            deadline = time.monotonic() + BOOT_TIMEOUT_S
            while time.monotonic() < deadline:
                try:
                    if client.get(f"{self.url}/ready", timeout=5).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                threading.Event().wait(0.05)
        raise AssertionError(f"not ready again:\n{self.log}")

    def worker(self, name: str) -> psutil.Process:
        """The live process of a worker, found by its module and its place among its siblings."""
        module = {"gpu": "workers.gpu_scheduler", "text": "workers.text", "http": "workers.http_frontend"}
        role, _, index = name.partition("-")
        children = psutil.Process(self.process.pid).children()
        matches = sorted((c for c in children if module[role] in c.cmdline()), key=lambda c: c.pid)
        return matches[int(index)]

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def capacity(self) -> dict[str, int]:
        return dict(httpx.get(f"{self.url}/v1/capacity", timeout=10).json())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stop(self) -> int:
        """SIGTERM, then SIGKILL for whatever is left; returns the supervisor's exit code."""
        survivors = self.workers() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(15)
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        for process in survivors:
            if process.is_running():
                process.kill()
        return self.process.returncode


def run_supervisor(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """`python supervisor.py` to its end, for starts that fail."""
    return subprocess.run(
        [sys.executable, str(ROOT / "supervisor.py"), *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )


def is_alive(process: psutil.Process) -> bool:
    """False for the dead that their foster parent has yet to collect, too."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory_names() -> set[str]:
    return set(os.listdir("/dev/shm"))


def one_line(text: str) -> str:
    """The only line of `text`; anything more is a failure."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    assert not re.search(r"Traceback|File \"", text)
    return lines[0]
