"""The builders' processes: what becomes of jobs that fail, take too long or are not wanted any more."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sparkinfer.grammar.grammar_spec import GrammarSpec
from sparkinfer.request import RegexFormat
from workers.builder_pool import BuilderDiedError, BuilderPool
from workers.grammar_frame import Built, Refused, Working
from workers.shared_work import NobodyWaitsError

BOMB = "a|b" * 300_000


def job(pattern: str) -> bytes:
    return msgspec.msgpack.encode(GrammarSpec(special_tokens=(), output_format=RegexFormat(pattern)))


@contextlib.asynccontextmanager
async def pool(limit_s: float = 3.0) -> AsyncIterator[BuilderPool]:
    made = BuilderPool(limit_s)
    yield made
    assert not any(made._idle[is_slow] and made._line.has(is_slow) for is_slow in (False, True))
    while made._working:
        await asyncio.wait(made._working)
    for process in (builder._process for idle in made._idle.values() for builder in idle):
        if process is not None:
            process.kill()
            await process.communicate()


def test_a_job_that_fails_costs_its_own_requests_alone() -> None:
    async def body() -> None:
        async with pool() as builders:
            jobs = [job("[ab]"), b"no job", job("["), job("[cd]")]
            results = await asyncio.gather(*(builders.run(j, 0, lambda: True) for j in jobs), return_exceptions=True)
        assert isinstance(results[0], Built)
        assert isinstance(results[1], BuilderDiedError)
        assert isinstance(results[2], Refused)
        assert isinstance(results[3], Built)

    asyncio.run(body())


@pytest.mark.parametrize("limit_s", [0.1, 0.5])
def test_a_job_that_takes_too_long_says_where_it_was(limit_s: float) -> None:
    async def body() -> None:
        async with pool(limit_s) as builders:
            assert await builders.run(job(BOMB), 0, lambda: True) == Working("response_format")
            assert isinstance(await builders.run(job("[ab]"), 0, lambda: True), Built)

    asyncio.run(body())


def test_a_lower_limit_of_memory_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -v 3000000\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    async def body() -> None:
        async with pool() as builders:
            assert isinstance(await builders.run(job("[ab]"), 0, lambda: True), Built)

    asyncio.run(body())


def test_what_nobody_waits_for_is_given_up() -> None:
    async def body() -> None:
        async with pool(600) as builders:
            is_wanted = True
            running = asyncio.ensure_future(builders.run(job(BOMB), 0, lambda: is_wanted))
            await builders.run(job("[ab]"), 0, lambda: True)
            is_wanted = False
            with pytest.raises(NobodyWaitsError):
                await running
            with pytest.raises(NobodyWaitsError):
                await builders.run(job("[ab]"), 0, lambda: False)

    asyncio.run(body())


def test_a_process_that_does_not_start_fails_one_job_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with pool() as builders:
            with monkeypatch.context() as broken:
                broken.setattr(sys, "executable", "/bin/false")
                results = await asyncio.gather(
                    *(builders.run(job(f"[ab]{i}"), 0, lambda: True) for i in range(5)), return_exceptions=True
                )
                while builders._working:  # a sixth may be on its way, and would fail the next job
                    await asyncio.wait(builders._working)
            assert all(isinstance(result, BuilderDiedError) for result in results)
            assert isinstance(await builders.run(job("[ab]"), 0, lambda: True), Built)

    asyncio.run(body())
