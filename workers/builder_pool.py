"""The processes that build grammars, as the text worker sees them. Knows jobs and deadlines; never what a job says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine

import msgspec

from sparkinfer.errors import RequestError
from workers.builder import Builder
from workers.builder_line import DEAR_S, MAX_AGE_S, BuilderLine, Job
from workers.grammar_frame import Built, Lost, Order, Refused, Spent, Working
from workers.shared_work import IsWanted, NobodyWaitsError

log = logging.getLogger("text")

NUM_QUICK, NUM_SLOW = 2, 2
BOOT_TIMEOUT_S = 60.0
SILENCE_S = 60.0             # then a builder is dead; a job that gets no processor's time says so every second
GIVE_UP_TIMEOUT_S = 30.0     # for a process to be ended, on a machine that is busy with others


class BuilderDiedError(Exception):
    """The job was lost with the process that had it."""


class TooBusyError(RequestError):
    """A job was not done, and not because of itself."""

    def __init__(self) -> None:
        super().__init__(503, "too many complex schemas are being compiled; try again", code="overloaded")


class TooDearError(Exception):
    """A job that takes long was not done: the processors are too busy for it."""

    def __init__(self, working_on: Working | None) -> None:
        super().__init__()
        self.working_on = working_on


class BuilderPool:
    """Some processes, each with one job at a time; which one is for the line to say. Used on one event loop."""

    def __init__(self, limit_s: float) -> None:
        """limit_s: of a processor's time, for one job."""
        self._limit_s = limit_s
        self._line = BuilderLine()
        self._asleep = {False: [Builder() for _ in range(NUM_QUICK)], True: [Builder() for _ in range(NUM_SLOW)]}
        self._idle: dict[bool, list[Builder]] = {False: [], True: []}
        self._working: set[asyncio.Task[None]] = set()

    async def start_one(self) -> None:
        """Have a process ready before it is needed."""
        await self._wake(self._asleep[False].pop(), is_slow=False)

    async def run(self, payload: bytes, client_id: int, is_wanted: IsWanted) -> Built | Refused | Working | None:
        """What became of a job; what it was working on, or None, when it took longer.

        payload:    a GrammarSpec or a CallCheck in msgpack
        is_wanted:  asked now and then
        Raises BuilderDiedError, TooBusyError, TooDearError and NobodyWaitsError.
        """
        job = Job(payload, client_id, is_wanted, asyncio.get_running_loop().create_future(), time.monotonic())
        self._put(job)
        reply = await job.outcome
        return job.working_on if reply is None else reply

    def _put(self, job: Job) -> None:
        left_out = self._line.put(job)
        if left_out is not None:
            _end(left_out, TooBusyError())
        self._dispatch()

    def _dispatch(self) -> None:
        """Jobs for those that are ready; where some are left, one more process comes: no job waits for that alone."""
        for is_slow, idle in self._idle.items():
            while idle and (job := self._next(is_slow)) is not None:
                self._spawn(self._serve(idle.pop(), job, is_slow))
            if self._asleep[is_slow] and self._line.has(is_slow):
                self._spawn(self._wake(self._asleep[is_slow].pop(), is_slow))

    def _next(self, is_slow: bool) -> Job | None:
        while (job := self._line.pop(is_slow)) is not None and not job.is_wanted():
            self._line.leave(job)
            _end(job, NobodyWaitsError())
        return job

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _wake(self, builder: Builder, is_slow: bool) -> None:
        try:
            await asyncio.wait_for(builder.start(), BOOT_TIMEOUT_S)
            self._idle[is_slow].append(builder)
        except (OSError, EOFError, TimeoutError) as error:
            self._is_dead(builder, is_slow, error)
            job = self._next(is_slow)
            if job is not None:
                self._line.leave(job)
                _end(job, BuilderDiedError())
        except asyncio.CancelledError:
            builder.kill()
            raise
        self._dispatch()

    def _is_dead(self, builder: Builder, is_slow: bool, error: Exception) -> None:
        log.error("a grammar builder died: %s", error or type(error).__name__)
        builder.kill()
        self._asleep[is_slow].append(builder)

    async def _serve(self, builder: Builder, job: Job, is_slow: bool) -> None:
        """One run of a job: to its end, or to where it makes way."""
        try:
            await asyncio.wait_for(builder.start(), BOOT_TIMEOUT_S)
            await builder.send(Order(job.payload, is_slow))
            outcome = await self._watch(builder, job)
            self._idle[is_slow].append(builder)
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            self._is_dead(builder, is_slow, error)
            outcome = BuilderDiedError()
        except asyncio.CancelledError:
            builder.kill()  # nobody will read its reply
            raise
        if isinstance(outcome, Spent):
            self._put(job)
        else:
            self._line.leave(job)
            _end(job, outcome)
            self._dispatch()

    async def _watch(self, builder: Builder, job: Job) -> Built | Refused | Exception | Spent | None:
        """The end of a run; Spent: the job made way. Raises what a dead builder raises."""
        spent_s = 0.0
        while True:
            news = await asyncio.wait_for(builder.news(), SILENCE_S)
            if isinstance(news, Built | Refused):
                return news
            if isinstance(news, Lost):
                log.error("a grammar could not be built: the process that had the job died of it")
                return BuilderDiedError()
            if isinstance(news, Working):
                job.working_on = news
                continue
            goes_on = self._line.goes_on(job, news.cpu_s, news.cpu_s - spent_s)
            spent_s, now = news.cpu_s, time.monotonic()
            for old in self._line.take_old(now):
                _end(old, _too_old(old))
            outcome: Exception | Spent | None = news
            if not job.is_wanted():
                outcome = NobodyWaitsError()
            elif spent_s >= self._limit_s:
                outcome = None
            elif now - job.arrived_at > MAX_AGE_S:
                outcome = _too_old(job)
            elif goes_on:
                continue
            reply = await asyncio.wait_for(builder.give_up(), GIVE_UP_TIMEOUT_S)
            return outcome if isinstance(reply, Lost) else reply


def _too_old(job: Job) -> Exception:
    """Of a job that has not had its time, since others were in line."""
    return TooDearError(job.working_on) if job.spent_s >= DEAR_S else TooBusyError()


def _end(job: Job, outcome: Built | Refused | Exception | None) -> None:
    if job.outcome.done():
        return  # nobody awaits it
    if isinstance(outcome, Exception):
        job.outcome.set_exception(outcome)
    else:
        job.outcome.set_result(outcome)
