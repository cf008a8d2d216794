"""One child process of the supervisor: spawning it, what is known of it, and how to end it.

Knows pids and descriptors; never requests.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ipc.channel import Outbox
from ipc.codec import ENCODER
from ipc.endpoints import inbox
from ipc.status_board import StatusSlot
from ipc.worker_spec import WorkerSpec, write_spec
from sparkinfer.config import ServerConfig

ROOT = Path(__file__).resolve().parent.parent
SPIN_COUNT = "1000"  # of waiting OpenMP threads: by default they spin on and starve each other where cores are few
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0
STABLE_AFTER_S = 60.0  # a worker that lived this long starts its back-off afresh


@dataclass(slots=True)
class Child:
    """A named worker across its generations. Owned by the supervisor's loop."""

    name: str
    module: str                       # dotted name of the worker's module
    status: StatusSlot
    generation: int = 0
    pid: int = 0                      # 0: not running
    outbox: Outbox | None = None
    spawned_at: float = 0.0
    is_ready: bool = False            # this generation has reported READY
    respawn_at: float = 0.0           # 0: no respawn planned
    aborted_at: float = 0.0           # when SIGABRT was sent for a stale heartbeat
    failures: int = field(default=0)  # deaths in a row, for the back-off
    failed_spawns: int = 0            # attempts in a row that found no process, memory or descriptor

    def spawn(self, spec: WorkerSpec, inherited_fds: list[int], environment: dict[str, str]) -> None:
        """Start the process of `spec.generation`; its inbox may be written to at once.

        Raises OSError where the system has no process, memory or descriptor for it; nothing is running then.
        """
        self.generation = spec.generation
        self.status.begin(spec.generation)
        outbox = Outbox(inbox(spec.run_dir, self.name, self.generation), ENCODER)
        try:
            process = self._start_process(spec, inherited_fds, environment)
        except OSError:
            outbox.close()
            raise
        process.returncode = 0  # the supervisor reaps all children itself; keep Popen from warning about this one
        self.pid, self.outbox, self.failed_spawns = process.pid, outbox, 0
        self.spawned_at, self.is_ready, self.respawn_at, self.aborted_at = time.monotonic(), False, 0.0, 0.0

    def _start_process(
        self, spec: WorkerSpec, inherited_fds: list[int], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        spec_fd = write_spec(spec)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, str(spec_fd)],
                pass_fds=[spec_fd, *inherited_fds],
                stdin=subprocess.DEVNULL,
                env={"GOMP_SPINCOUNT": SPIN_COUNT, **environment, "PYTHONPATH": str(ROOT)},
                process_group=0,  # a terminal's Ctrl-C reaches the supervisor only
            )
        finally:
            os.close(spec_fd)

    def died(self) -> None:
        """Forget the process and close the channel to it."""
        if time.monotonic() - self.spawned_at > STABLE_AFTER_S:
            self.failures = 0
        self.failures += 1
        self.pid, self.is_ready = 0, False
        if self.outbox is not None:
            self.outbox.close()
            self.outbox = None

    def describe_exit(self, code: int) -> str:
        """How the process ended, for the log; a signal's number is negative."""
        if code >= 0:
            return f"exit code {code}"
        if self.aborted_at:
            return f"{signal.Signals(-code).name} (its main loop stood still)"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"{signal.Signals(-code).name}{hint}"

    def plan_respawn(self) -> float:
        """Set and return the jittered delay in seconds before the next generation."""
        doublings = max(0, self.failures + self.failed_spawns - 1)
        delay: float = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**doublings) * random.uniform(0.5, 1.5)
        self.respawn_at = time.monotonic() + delay
        return delay

    def kill(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)


def worker_names(server: ServerConfig) -> tuple[str, ...]:
    """Names of all workers in status-board order: the gpu scheduler, the text pool, the http workers."""
    texts = (f"text-{i}" for i in range(server.text_workers))
    https = (f"http-{i}" for i in range(server.http_workers))
    return ("gpu-0", *texts, *https)
