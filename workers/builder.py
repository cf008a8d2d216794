"""One process that builds grammars, from outside. Knows its pipes; never which job is next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import msgspec

from workers.grammar_frame import LENGTH, BuilderNews, BuilderReply, Built, Lost, Order, Refused

ROOT = Path(__file__).resolve().parent.parent
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[BuilderReply | BuilderNews] = msgspec.msgpack.Decoder(BuilderReply | BuilderNews)


class Builder:
    """Started when it is first needed and again after its death. Has one job at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

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

    async def send(self, order: Order) -> None:
        """Begin with a job. Raises OSError."""
        await self._write(_encoder.encode(order))

    async def news(self) -> BuilderReply | BuilderNews:
        """Of the job at hand; a BuilderReply is the last. Raises OSError or EOFError when the process dies."""
        assert self._process is not None
        assert self._process.stdout is not None
        (length,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
        return _decoder.decode(await self._process.stdout.readexactly(length))

    async def give_up(self) -> BuilderReply:
        """End the job at hand: Lost, or its reply when that was under way. Raises OSError or EOFError."""
        await self._write(b"")
        while True:
            news = await self.news()
            if isinstance(news, Built | Refused | Lost):
                return news

    def kill(self) -> None:
        """End the process; a job that it has is lost."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    async def _write(self, frame: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(LENGTH.pack(len(frame)) + frame)
        await self._process.stdin.drain()
