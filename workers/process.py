"""The skeleton that every worker process shares: birth, peers, heartbeat, exit code.

A worker reads its WorkerSpec, attaches to the shared memory that it inherited, binds its inbox, and runs its own main
loop, which writes the heartbeat (never a thread: a busy process must not look dead, a stuck one must not look alive).
Knows channels and rings; never what is sent over them.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import msgspec
import uvloop

from ipc.backlog import BackloggedWriter
from ipc.channel import Inbox, Outbox
from ipc.codec import ENCODER, MessageDecoder
from ipc.doorbell import Doorbell
from ipc.endpoints import inbox
from ipc.mask_table import MaskTable
from ipc.messages import PeerDown, PeerUp
from ipc.peer_death import die_with_parent
from ipc.ring import RingReader, RingWriter
from ipc.segment import Segment
from ipc.status_board import StatusBoard, WorkerState
from ipc.worker_spec import WorkerSpec, read_spec
from sparkinfer.config import Config
from sparkinfer.errors import CheckpointError, ConfigError
from sparkinfer.log import setup_logging

EXIT_CLEAN, EXIT_CRASHED, EXIT_BOOT, EXIT_CONFIG = 0, 1, 3, 4
EXIT_CUT = 2  # a drain cut requests off; the supervisor exits with 1 then
HEARTBEAT_S = 0.5
GC_THRESHOLD = 50_000  # allocations between young collections; the default of 700 runs one every few tokens
BACKLOG_BYTES = 64 << 20  # what may wait for a peer that does not read before its requests are given up

log = logging.getLogger("process")


class Peers:
    """Outboxes to the workers that are up, by name. Only the worker's main loop touches it."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._outboxes: dict[str, Outbox] = {}
        self.generations: dict[str, int] = {}
        self._dead: dict[str, int] = {}  # the last generation known to be gone

    def up(self, message: PeerUp) -> None:
        self._close(message.name)
        self._outboxes[message.name] = Outbox(inbox(self._run_dir, message.name, message.generation), ENCODER)
        self.generations[message.name] = message.generation

    def down(self, message: PeerDown) -> bool:
        """Close the channel; False when a newer generation is already up."""
        self._dead[message.name] = message.generation
        if self.generations.get(message.name, message.generation) != message.generation:
            return False
        self._close(message.name)
        return True

    def is_dead(self, name: str, generation: int) -> bool:
        """Whether that process is known to be gone; what it sent may still arrive."""
        return generation <= self._dead.get(name, 0)

    def outbox(self, name: str) -> Outbox | None:
        """The channel to `name`, None while it is down."""
        return self._outboxes.get(name)

    def names(self, role: str) -> list[str]:
        """Names of the live peers of one role ("text")."""
        return [name for name in self._outboxes if name.startswith(f"{role}-")]

    def _close(self, name: str) -> None:
        self.generations.pop(name, None)
        old = self._outboxes.pop(name, None)
        if old is not None:
            old.close()


class WorkerContext:
    """What a worker process holds: configuration, peers, rings, its row of the status board."""

    def __init__(self, spec: WorkerSpec, inbox_decoder: MessageDecoder[Any]) -> None:
        self.spec = spec
        self.config: Config = msgspec.convert(spec.config, Config)
        self.board = StatusBoard.attach(spec.board_fd)
        self.status = self.board.slot(spec.slot)
        self.status.claim()
        self.mask_table = MaskTable.attach(spec.mask_table_fd)
        self.peers = Peers(spec.run_dir)
        self.readers: dict[str, RingReader] = {}
        self.writers: dict[str, BackloggedWriter] = {}
        for ring in spec.rings:
            segment, doorbell = Segment.attach(ring.segment_fd, ring.size), Doorbell.attach(ring.doorbell_fd)
            if ring.reader == spec.name:
                self.readers[ring.writer] = RingReader(segment, doorbell)
            else:
                self.writers[ring.reader] = BackloggedWriter(RingWriter(segment, doorbell), BACKLOG_BYTES)
        self.inbox: Inbox[Any] = Inbox(inbox(spec.run_dir, spec.name, spec.generation), inbox_decoder)

    def ready(self) -> None:
        """Report READY: from here on the supervisor announces this worker to its peers.

        What is there now stays: no later collection of garbage looks at it, which would take as long as many steps.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        self.status.beat()
        self.status.state = WorkerState.READY

    def attach_to_loop(
        self,
        loop: asyncio.AbstractEventLoop,
        on_messages: Callable[[list[Any]], None],
        on_frames: Callable[[str, Sequence[bytes]], None],
    ) -> None:
        """Call `on_messages(batch)` and `on_frames(writer_name, frames)` from `loop`; start the heartbeat.

        What escapes a callback of the loop ends the process, as what escapes `run`'s body does: a ring that cannot be
        read any more must not look alive.
        """
        loop.set_exception_handler(_end_process)
        self.inbox.watch(loop, on_messages)
        for name, reader in self.readers.items():
            loop.add_reader(reader.fileno(), self._drain, name, reader, on_frames)
        self._beat(loop)

    def _drain(self, name: str, reader: RingReader, on_frames: Callable[[str, Sequence[bytes]], None]) -> None:
        reader.acknowledge()
        on_frames(name, reader.drain())

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.status.beat()
        loop.call_later(HEARTBEAT_S, self._beat, loop)


def run(body: Callable[[WorkerContext], int], inbox_decoder: MessageDecoder[Any]) -> NoReturn:
    """Run a worker's `body` to its end and exit with the code it returns, which the supervisor understands.

    The one place of a worker that catches everything: what escapes `body` is ours, its traceback goes to the log,
    and the process ends (3 before READY: not to be tried again; 1 after it: to be respawned).
    """
    spec = read_spec(int(sys.argv[1]))
    die_with_parent(spec.supervisor_pid)
    _raise_descriptor_limit()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup_logging(spec.name, spec.config["log"]["level"])
    status = None
    try:
        context = WorkerContext(spec, inbox_decoder)
        status = context.status
        code = body(context)
    except (ConfigError, CheckpointError) as error:
        log.error("%s", error)
        code = EXIT_CONFIG
    except Exception:  # the boundary described above
        traceback.print_exc()
        code = EXIT_CRASHED if status is not None and status.state == WorkerState.READY else EXIT_BOOT
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # interpreter teardown can take longer than a drain may


def _end_process(loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
    """Loop exception handler. Tasks have their own owners; a plain callback has none but this process."""
    loop.default_exception_handler(details)
    if "handle" in details:
        logging.shutdown()
        os._exit(EXIT_CRASHED)


def _raise_descriptor_limit() -> None:
    """Each connection takes a descriptor; the usual soft limit of 1024 refuses the rest without a word."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_async(main: Callable[[WorkerContext], Awaitable[int]]) -> Callable[[WorkerContext], int]:
    """A body for `run` that drives `main` on a uvloop event loop."""

    def body(context: WorkerContext) -> int:
        async def start() -> int:
            return await main(context)

        return uvloop.run(start())

    return body


def stop_event(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that SIGTERM sets."""
    event = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, event.set)
    return event
