"""The processes that build grammars, as the text worker sees them. Knows jobs and deadlines; never what a job says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparkinfer.errors import RequestError
from workers.grammar_frame import LENGTH, BuilderReply, Built, Lost, Refused, Working

log = logging.getLogger("text")

ROOT = Path(__file__).resolve().parent.parent
BOOT_TIMEOUT_S = 60.0
GIVE_UP_TIMEOUT_S = 5.0


IsWanted = Callable[[], bool]


class BuilderDiedError(Exception):
    """The job was lost with the process that had it."""


class BuilderPool:
    """Some processes, each with one job at a time, first come, first served."""

    def __init__(self, num_processes: int) -> None:
        self.num_waiting = 0              # jobs in line or in work
        self._idle: asyncio.Queue[Builder] = asyncio.Queue()
        for _ in range(num_processes):
            self._idle.put_nowait(Builder())

    async def start_one(self) -> None:
        """Have a process ready before it is needed."""
        builder = await self._idle.get()
        try:
            await builder.start()
        finally:
            self._idle.put_nowait(builder)

    async def run(self, job: bytes, seconds: float, is_wanted: IsWanted) -> Built | Refused | Working | None:
        """What became of a job; what it was working on, or None, when it took longer.

        is_wanted: asked when its turn comes. Raises BuilderDiedError, and RequestError for what nobody waits for.
        """
        self.num_waiting += 1
        try:
            builder = await self._idle.get()
            try:
                if not is_wanted():
                    raise RequestError(499, "the client is gone")
                return await self._run(builder, job, seconds)
            finally:
                self._idle.put_nowait(builder)
        finally:
            self.num_waiting -= 1

    async def _run(self, builder: Builder, job: bytes, seconds: float) -> Built | Refused | Working | None:
        try:
            await asyncio.wait_for(builder.start(), BOOT_TIMEOUT_S)
            await builder.send(job)
            try:
                reply = await asyncio.wait_for(builder.reply(), seconds)
            except TimeoutError:
                await builder.send(b"")
                await asyncio.wait_for(builder.reply(), GIVE_UP_TIMEOUT_S)
                return builder.working_on
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            log.error("a grammar builder died: %s", error or type(error).__name__)
            builder.kill()
            raise BuilderDiedError from error
        except asyncio.CancelledError:
            builder.kill()  # nobody will read its reply
            raise
        if isinstance(reply, Lost):
            log.error("a grammar could not be built: the process that had the job died of it")
            raise BuilderDiedError
        return reply


class Builder:
    """One process, started when it is first needed and again after its death."""

    def __init__(self) -> None:
        self.working_on: Working | None = None  # what was begun last of the last job
        self._process: asyncio.subprocess.Process | None = None
        self._decoder = msgspec.msgpack.Decoder(BuilderReply | Working)

    async def send(self, job: bytes) -> None:
        """A GrammarSpec or a CallCheck in msgpack; nothing gives up the one before. Raises OSError."""
        assert self._process is not None
        assert self._process.stdin is not None
        if job:
            self.working_on = None
        self._process.stdin.write(LENGTH.pack(len(job)) + job)
        await self._process.stdin.drain()

    async def reply(self) -> BuilderReply:
        """To the job sent last. Raises OSError or EOFError when the process dies of it."""
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            (length,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
            message: BuilderReply | Working = self._decoder.decode(await self._process.stdout.readexactly(length))
            if not isinstance(message, Working):
                return message
            self.working_on = message

    def kill(self) -> None:
        """End the process; a job that it has is lost."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    async def start(self) -> None:
        """Have the process ready for a job, alive as far as we know. Raises OSError or EOFError when it dies first."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "workers.grammar_builder", str(os.getpid()), cwd=ROOT,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},  # it forks
            )  # fmt: skip
            assert self._process.stdout is not None
            await self._process.stdout.readexactly(LENGTH.size)
