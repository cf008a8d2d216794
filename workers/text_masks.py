"""The text worker's rows of the mask table: a matcher for each constrained choice, its masks written as tokens come.

Owns rows, matchers and the threads that compute masks; never a grammar's text or a request's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ipc.mask_table import MAX_FORCED, MaskTable
from sparkinfer.errors import RequestError
from sparkinfer.grammar.grammar_cache import CompiledGrammar
from sparkinfer.grammar.matcher import GrammarError, Matcher, NotAllowedError
from sparkinfer.request import RequestId
from workers.mask_stats import MaskStats

log = logging.getLogger("text")

NUM_THREADS = 2
SLOW_LANE = NUM_THREADS    # a thread that stands back, for grammars that have proved slow
SLOW_NICENESS = 10
MASK_TIMEOUT_S = 10.0      # for one mask, from the token before it; then its request fails
MAX_SLOW_BYTES = 512 << 20  # estimated, of the grammars of all running answers

OnFailure = Callable[[RequestId, RequestError], None]
Batch = deque[tuple["ConstrainedChoice", list[int]]]  # with the tokens that have come


@dataclass(slots=True, eq=False)
class ConstrainedChoice:
    """A choice that runs under a grammar."""

    request_id: RequestId
    row: int
    lane: int                         # number of the thread that its masks are for
    grammar: CompiledGrammar
    matcher: Matcher
    position: int                     # of the token that the mask being made, or last made, is for
    asked_at: float = 0.0             # monotonic seconds; 0: the mask is there
    is_open: bool = True              # the row is this choice's


class MaskWriter:
    """Used on the worker's event loop. The masks of a row are computed one after the other.

    A grammar whose masks take long goes to a thread of its kind, so that it delays no other one's.
    """

    def __init__(
        self, table: MaskTable, rows: range, stats: MaskStats, on_failure: OnFailure, fast_forward: bool = True
    ) -> None:
        """rows: those of this worker; what a worker before it left there is forgotten.

        fast_forward: tokens that leave no choice are told together
        """
        self._fast_forward = fast_forward
        self._table = table
        self._stats = stats
        self._on_failure = on_failure
        self._free = deque(rows)
        self._queue: deque[tuple[int, asyncio.Future[list[int]]]] = deque()
        self._choices: dict[tuple[RequestId, int], ConstrainedChoice] = {}
        self._loop = asyncio.get_running_loop()
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix="mask") for _ in range(NUM_THREADS)]
        self._threads.append(ThreadPoolExecutor(1, thread_name_prefix="slow-mask", initializer=_stand_back))
        self._news: list[dict[int, tuple[ConstrainedChoice, list[int]]]] = [{} for _ in self._threads]  # by row
        for row in rows:
            table.clear(row)

    async def take_rows(self, count: int) -> list[int]:
        """Wait for `count` free rows, first come, first served."""
        future: asyncio.Future[list[int]] = self._loop.create_future()
        self._queue.append((count, future))
        self._serve()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(future.result())
            raise

    def give_back(self, rows: list[int]) -> None:
        """Rows that no choice was begun on."""
        self._free.extendleft(rows)  # to be used next: their memory is warm
        self._serve()

    def begin(self, request_id: RequestId, choice: int, row: int, grammar: CompiledGrammar, position: int) -> None:
        """position: of the first token that the grammar is for."""
        lane, start = _lane(grammar, row), grammar.start.copy()
        constrained = ConstrainedChoice(request_id, row, lane, grammar, start, position, time.monotonic())
        self._choices[request_id, choice] = constrained
        self._submit(lane, deque([(constrained, [])]))

    def push(self, request_id: RequestId, choice: int, token_id: int) -> None:
        """A token of any choice; nothing happens before `flush`, and for one without a grammar nothing at all."""
        constrained = self._choices.get((request_id, choice))
        if constrained is not None:
            constrained.asked_at = time.monotonic()
            if constrained.row not in self._news[constrained.lane]:
                constrained.lane = _lane(constrained.grammar, constrained.row)
            news = self._news[constrained.lane]
            news.setdefault(constrained.row, (constrained, []))[1].append(token_id)

    def flush(self) -> None:
        """Have the next masks of the choices pushed computed."""
        for lane, news in enumerate(self._news):
            if news:
                self._submit(lane, deque(news.values()))
                news.clear()

    def end(self, request_id: RequestId, choice: int) -> None:
        """The choice needs no masks any more; unknown ones are ignored."""
        constrained = self._choices.pop((request_id, choice), None)
        if constrained is not None:
            constrained.is_open = False
            self._news[constrained.lane].pop(constrained.row, None)  # the row's next owner may be here before `flush`
            # behind the jobs that may still write the row
            freed = self._threads[constrained.lane].submit(self._table.clear, constrained.row)
            freed.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self.give_back, [constrained.row]))

    def check(self) -> None:
        """Fail requests whose mask does not come, or whose grammar takes too much memory; called now and then."""
        if not self._choices:
            return
        limit = time.monotonic() - MASK_TIMEOUT_S
        for constrained in list(self._choices.values()):
            if 0 < constrained.asked_at < limit:
                self._on_failure(constrained.request_id, _too_complex(f"a mask took longer than {MASK_TIMEOUT_S:g} s"))
        grammars = {id(c.grammar): c.grammar for c in self._choices.values() if c.grammar.is_slow}
        if sum(grammar.num_bytes for grammar in grammars.values()) > MAX_SLOW_BYTES:
            largest = max(grammars.values(), key=lambda grammar: grammar.num_bytes)
            for constrained in [c for c in self._choices.values() if c.grammar is largest]:
                self._on_failure(constrained.request_id, _too_complex("it takes too much memory"))

    def _serve(self) -> None:
        while self._queue and (self._queue[0][1].done() or len(self._free) >= self._queue[0][0]):
            count, future = self._queue.popleft()
            if not future.done():
                future.set_result([self._free.popleft() for _ in range(count)])

    def _submit(self, lane: int, batch: Batch) -> None:
        future = self._threads[lane].submit(self._run, batch)
        future.add_done_callback(functools.partial(self._on_done, lane, batch))

    # On a thread of the row

    def _on_done(self, lane: int, batch: Batch, future: Future[None]) -> None:
        """What fails is the first of those left: a fault of ours, or a panic of native code, which is no Exception."""
        error = future.exception()
        if error is not None:
            log.error("a mask could not be computed", exc_info=error)
            constrained, _ = batch.popleft()
            constrained.grammar.has_failed = True  # what its copies share may be broken
            self._fail(constrained, RequestError(500, f"the grammar cannot go on: {error}", code="grammar_failed"))
            self._submit(lane, batch)

    def _run(self, batch: Batch) -> None:
        while batch:
            self._advance(*batch[0])
            batch.popleft()

    def _advance(self, constrained: ConstrainedChoice, token_ids: list[int]) -> None:
        """token_ids: none before the first mask, several where the grammar left no choice."""
        if not constrained.is_open:
            return
        try:
            for token_id in token_ids:
                constrained.matcher.accept(token_id)
        except GrammarError as error:
            self._fail(constrained, _failed(constrained.grammar, error))
            return
        constrained.position += len(token_ids)
        self._stats.num_forced_tokens += max(0, len(token_ids) - 1)
        self._publish(constrained)

    def _publish(self, constrained: ConstrainedChoice) -> None:
        if not constrained.is_open:
            return
        table, row = self._table, constrained.row
        started_at, worked_at = time.perf_counter(), time.thread_time()
        try:
            table.clear(row)
            constrained.matcher.fill(table.row(row))
            table.force(row, constrained.matcher.forced()[:MAX_FORCED] if self._fast_forward else ())
        except GrammarError as error:
            self._fail(constrained, _failed(constrained.grammar, error))
            return
        constrained.grammar.took(time.thread_time() - worked_at)
        constrained.asked_at = 0.0
        table.mark_ready(row, constrained.position)
        self._stats.add(time.perf_counter() - started_at)

    def _fail(self, constrained: ConstrainedChoice, error: RequestError) -> None:
        self._loop.call_soon_threadsafe(self._on_failure, constrained.request_id, error)


def _lane(grammar: CompiledGrammar, row: int) -> int:
    return SLOW_LANE if grammar.is_slow else row % NUM_THREADS


def _failed(grammar: CompiledGrammar, error: GrammarError) -> RequestError:
    """What the client is told; a limit that one answer ran into is in the way of all that share its grammar."""
    if isinstance(error, NotAllowedError):
        return RequestError(500, f"the grammar cannot go on: {error}", code="grammar_failed")
    grammar.has_failed = True
    return _too_complex(str(error))


def _too_complex(reason: str) -> RequestError:
    message = f"the schema, pattern or grammar is too complex to go on with this answer: {reason}"
    return RequestError(400, message, code="schema_too_complex")


def _stand_back() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SLOW_NICENESS)  # of this thread, on Linux
