"""What /metrics tells about the service's processes: read from /proc and the status board, so that nobody is asked."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from ipc.status_board import StatusBoard, WorkerState

SUPERVISOR = "supervisor"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of the service at one moment; a dead one has no CPU time and no memory."""

    name: str
    is_up: bool
    cpu_seconds: float     # of this generation
    resident_bytes: int
    restarts: int
    heartbeat_age_s: float
    uptime_s: float = 0.0  # of this generation


class _Stat(NamedTuple):
    cpu_seconds: float
    started_at_s: float    # CLOCK_BOOTTIME
    resident_bytes: int


class Processes:
    """All workers and the supervisor."""

    def __init__(self, board: StatusBoard, names: tuple[str, ...], supervisor_pid: int) -> None:
        """names: of the workers, in the board's order."""
        self._board = board
        self._names = names
        self._supervisor_pid = supervisor_pid

    def uptime_s(self) -> float:
        """How long the service runs, whichever of its workers were started again."""
        return _uptime_s(_read_stat(self._supervisor_pid))

    def samples(self) -> list[ProcessSample]:
        """The supervisor first."""
        stat = _read_stat(self._supervisor_pid)
        found = [ProcessSample(SUPERVISOR, stat is not None, *_usage(stat), 0, 0.0, _uptime_s(stat))]
        now_ns = time.monotonic_ns()
        for index, name in enumerate(self._names):
            slot = self._board.slot(index)
            stat = _read_stat(slot.pid) if slot.pid and slot.state != WorkerState.STOPPED else None
            age_s = (now_ns - slot.heartbeat_ns) / 1e9
            restarts = max(0, slot.generation - 1)
            found.append(ProcessSample(name, stat is not None, *_usage(stat), restarts, age_s, _uptime_s(stat)))
        return found


def _usage(stat: _Stat | None) -> tuple[float, int]:
    return (0.0, 0) if stat is None else (stat.cpu_seconds, stat.resident_bytes)


def _uptime_s(stat: _Stat | None) -> float:
    return 0.0 if stat is None else max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started_at_s)


def _read_stat(pid: int) -> _Stat | None:
    """/proc/PID/stat, None when there is no such process (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may contain anything
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return _Stat(cpu_seconds, int(fields[19]) / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES)
