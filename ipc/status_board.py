"""How every worker is doing, and what the loaded model is, in one segment that all processes can read.

Owns the layout; never knows what is healthy. Without locks: one writer per word, aligned 8-byte stores.

    offset         bytes  field                  writer
         0             8  magic "SPKSTAT1"       supervisor
         8             8  version                supervisor
        16             8  num_slots              supervisor
        64  512 x num_slots  slots
         -         16448  service record

    slot (u64 words, gauges i64)                 writer
         0             8  pid                    worker
         8             8  generation             supervisor
        16             8  state                  worker; supervisor before spawning and after death
        24             8  heartbeat, ns          worker's main loop (CLOCK_MONOTONIC)
        32             8  boot phase             worker
        40             8  progress done, bytes   worker
        48             8  progress total, bytes  worker
        56             8  zero
        64        28 x 8  gauges of earlier      supervisor
                          generations, summed
       288        28 x 8  gauges                 worker

    service record                               writer
         0             8  version                gpu scheduler: odd while it writes
         8             8  length in bytes        gpu scheduler
        64         16384  JSON                   gpu scheduler

The supervisor writes a worker's words only while no such worker lives (`begin`, `mark_stopped`).
Service record: the reader takes the version before and after; a difference or an odd one means try again. A writer
that died in the middle leaves an odd version, which reads as "nothing there" until its successor writes.

NOTE: as in ipc/ring.py, the order of stores is x86-64's; aarch64 would need barriers around the record.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum
from typing import Final

from ipc.segment import Segment

_MAGIC: Final = int.from_bytes(b"SPKSTAT1", "little")
_VERSION: Final = 3
_HEADER_BYTES: Final = 64
_SLOT_BYTES: Final = 512
_RECORD_HEADER_BYTES: Final = 64
_READ_ATTEMPTS: Final = 100  # a 16 KiB copy takes about 1 us, the record is written once per boot

MAX_SERVICE_INFO_BYTES: Final = 16384
NUM_GAUGES: Final = 28

_PID, _GENERATION, _STATE, _HEARTBEAT, _PHASE, _DONE, _TOTAL = range(7)
_FIRST_EARLIER: Final = 8
_FIRST_GAUGE: Final = 36


class WorkerState(IntEnum):
    """Where a worker is in its life."""

    EMPTY = 0     # nobody has used this slot yet
    BOOTING = 1
    READY = 2
    DRAINING = 3
    STOPPED = 4   # the process is gone


class BootPhase(IntEnum):
    """What a booting worker is busy with."""

    SPAWNED = 0
    READING_METADATA = 1
    LOADING_WEIGHTS = 2
    ALLOCATING = 3
    WARMING_UP = 4
    DONE = 5


class GpuGauge(IntEnum):
    """Gauges of the gpu scheduler; from MASK_ROWS_LATE on they are counters, which a respawn sets to zero."""

    ACTIVE_REQUESTS = 0
    WAITING_REQUESTS = 1
    FREE_KV_BLOCKS = 2
    TOTAL_KV_BLOCKS = 3
    FREE_STATE_SLOTS = 4
    TOTAL_STATE_SLOTS = 5
    STEP_TIME_US = 6
    STEP_TOKENS = 7
    MASK_ROWS_LATE = 8
    ABORTS = 9
    STEPS = 10
    TOKENS_GENERATED = 11
    PROMPT_TOKENS = 12
    CACHED_TOKENS = 13
    PREEMPTIONS = 14
    REQUESTS = 15
    ADMISSION_WAITS = 16
    ADMISSION_WAIT_TIMEOUTS = 17
    SWAP_OUTS = 18
    PREFIX_LOOKUPS = 19
    PREFIX_HITS = 20
    PREFIX_EVICTIONS = 21
    PREFIX_ENTRIES = 22      # no counter, as the two below
    PREFIX_KV_BLOCKS = 23
    PREFIX_HOST_BYTES = 24
    NAN_LOGITS = 25


class TextGauge(IntEnum):
    """Gauges of a text worker; from TOOL_REQUESTS on they are counters."""
    ACTIVE_REQUESTS = 0
    TOOL_REQUESTS = 1         # whose calls a grammar holds
    STRUCTURED_REQUESTS = 2   # whose content a grammar holds
    FORCED_TOKENS = 3         # that a grammar left no choice about
    MASK_US = 4               # microseconds spent on masks
    FORCED_REQUESTS = 5       # that had to make a call
    FIRST_MASKS = 6           # to 16: masks by duration, see workers/mask_stats.py


class HttpGauge(IntEnum):
    """Gauges of an http worker; from REQUESTS on they are counters."""
    OPEN_REQUESTS = 0
    OPEN_STREAMS = 1
    REQUESTS = 2
    REJECTED_REQUESTS = 3


class StatusSlot:
    """One worker's words. Who may write which is the table of the module."""

    def __init__(self, words: memoryview) -> None:
        self._words = words  # 64 x i64

    @property
    def pid(self) -> int:
        """Process id of the worker that wrote last, 0 before the first one attached."""
        return self._words[_PID]

    @property
    def generation(self) -> int:
        """Which spawn of this worker the slot describes."""
        return self._words[_GENERATION]

    @property
    def state(self) -> WorkerState:
        """Where the worker is in its life."""
        return WorkerState(self._words[_STATE])

    @state.setter
    def state(self, state: WorkerState) -> None:
        self._words[_STATE] = state

    @property
    def heartbeat_ns(self) -> int:
        """time.monotonic_ns() of the last turn of the worker's main loop."""
        return self._words[_HEARTBEAT]

    @property
    def phase(self) -> BootPhase:
        """What the worker is busy with while BOOTING."""
        return BootPhase(self._words[_PHASE])

    @phase.setter
    def phase(self, phase: BootPhase) -> None:
        self._words[_PHASE] = phase

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes done, bytes total) of the boot phase, (0, 0) when it has none."""
        return self._words[_DONE], self._words[_TOTAL]

    def set_progress(self, num_done_bytes: int, num_total_bytes: int) -> None:
        """Worker: how far the boot phase is."""
        self._words[_TOTAL] = num_total_bytes
        self._words[_DONE] = num_done_bytes

    def beat(self) -> None:
        """Worker: the main loop turns."""
        self._words[_HEARTBEAT] = time.monotonic_ns()

    def claim(self) -> None:
        """Worker: this process is the one the slot describes; the first thing after attaching."""
        self._words[_PID] = os.getpid()
        self.beat()

    def begin(self, generation: int) -> None:
        """Supervisor, before it spawns: forget the predecessor but for `total`. The heartbeat starts now."""
        for gauge, value in enumerate(self.gauges()):
            self._words[_FIRST_EARLIER + gauge] += value
        for word in range(len(self._words)):
            if not _FIRST_EARLIER <= word < _FIRST_GAUGE:
                self._words[word] = 0
        self._words[_GENERATION] = generation
        self.beat()
        self.state = WorkerState.BOOTING

    def mark_stopped(self) -> None:
        """Supervisor, after the worker's death."""
        self.state = WorkerState.STOPPED

    def gauge(self, gauge: int) -> int:
        """Value of one gauge (a member of the role's enum)."""
        return self._words[_FIRST_GAUGE + gauge]

    def total(self, gauge: int) -> int:
        """Value of a counter over all generations of this worker; without meaning for gauges."""
        return self._words[_FIRST_EARLIER + gauge] + self._words[_FIRST_GAUGE + gauge]

    def set_gauge(self, gauge: int, value: int) -> None:
        """Worker: set one gauge."""
        self._words[_FIRST_GAUGE + gauge] = value

    def add_gauge(self, gauge: int, amount: int) -> None:
        """Worker: change one gauge."""
        self._words[_FIRST_GAUGE + gauge] += amount

    def gauges(self) -> list[int]:
        """All 28 gauges."""
        return self._words[_FIRST_GAUGE:].tolist()


class StatusBoard:
    """The whole board. The supervisor creates it; everybody attaches and keeps it for life."""

    def __init__(self, segment: Segment, num_slots: int) -> None:
        self.segment = segment
        self.num_slots = num_slots
        record = _HEADER_BYTES + num_slots * _SLOT_BYTES
        self._view = memoryview(segment.buffer)
        self._slots = [
            self._view[start : start + _SLOT_BYTES].cast("q") for start in range(_HEADER_BYTES, record, _SLOT_BYTES)
        ]
        self._record_words = self._view[record : record + _RECORD_HEADER_BYTES].cast("Q")
        self._record_start = record + _RECORD_HEADER_BYTES

    @classmethod
    def create(cls, num_slots: int) -> StatusBoard:
        """A board of EMPTY slots without service record (the supervisor's business)."""
        segment = Segment.create("status_board", _board_bytes(num_slots))
        with memoryview(segment.buffer) as view, view[:_HEADER_BYTES].cast("Q") as words:
            words[1], words[2] = _VERSION, num_slots
            words[0] = _MAGIC
        return cls(segment, num_slots)

    @classmethod
    def attach(cls, fd: int) -> StatusBoard:
        """The board behind an inherited descriptor. Raises ValueError when it is no status board."""
        segment = Segment.attach(fd, os.fstat(fd).st_size)
        with memoryview(segment.buffer) as view, view[:_HEADER_BYTES].cast("Q") as words:
            magic, version, num_slots = words[:3].tolist()
        if (magic, version, _board_bytes(num_slots)) != (_MAGIC, _VERSION, segment.size):
            raise ValueError(f"segment {segment.name!r} (fd {fd}) is not a status board of version {_VERSION}")
        return cls(segment, num_slots)

    @property
    def fd(self) -> int:
        """For `Popen(pass_fds=...)`."""
        return self.segment.fd

    def slot(self, index: int) -> StatusSlot:
        """Worker number `index`, 0 <= index < num_slots."""
        return StatusSlot(self._slots[index])

    def write_service_info(self, info: bytes) -> None:
        """Gpu scheduler: publish the model's facts. Raises ValueError beyond 16384 bytes."""
        if len(info) > MAX_SERVICE_INFO_BYTES:
            raise ValueError(f"service info has {len(info)} bytes, at most {MAX_SERVICE_INFO_BYTES} are allowed")
        writing = self._record_words[0] | 1
        self._record_words[0] = writing
        self._record_words[1] = len(info)
        self._view[self._record_start : self._record_start + len(info)] = info
        self._record_words[0] = writing + 1

    def read_service_info(self) -> bytes | None:
        """The model's facts as last published, None before that or while they change."""
        for _ in range(_READ_ATTEMPTS):
            version = self._record_words[0]
            if version == 0:
                return None
            if version % 2:
                continue
            length = min(self._record_words[1], MAX_SERVICE_INFO_BYTES)
            info = bytes(self._view[self._record_start : self._record_start + length])
            if self._record_words[0] == version:
                return info
        return None

    def close(self) -> None:
        """Let go of the segment. Closing twice is harmless."""
        for view in (*self._slots, self._record_words, self._view):
            view.release()
        self.segment.close()


def _board_bytes(num_slots: int) -> int:
    return _HEADER_BYTES + num_slots * _SLOT_BYTES + _RECORD_HEADER_BYTES + MAX_SERVICE_INFO_BYTES
