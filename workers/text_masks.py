"""The text worker's rows of the mask table: a matcher for each constrained choice, its masks written as tokens come.

Owns rows, matchers and the threads that compute masks; never a grammar's text or a request's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ipc.mask_table import MAX_FORCED, MaskTable
from sparkinfer.grammar.matcher import GrammarError, Matcher
from sparkinfer.request import RequestId
from workers.mask_stats import MaskStats

log = logging.getLogger("text")

NUM_THREADS = 2
MASK_TIMEOUT_S = 10.0  # for one mask, from the token before it; then its request fails

OnFailure = Callable[[RequestId, str], None]


@dataclass(slots=True, eq=False)
class ConstrainedChoice:
    """A choice that runs under a grammar."""

    request_id: RequestId
    row: int
    matcher: Matcher
    position: int                     # of the token that the mask being made, or last made, is for
    asked_at: float = 0.0             # monotonic seconds; 0: the mask is there
    is_open: bool = True              # the row is this choice's


class MaskWriter:
    """Used on the worker's event loop. A row's masks are all computed by the same thread."""

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
        self._news: list[dict[int, tuple[ConstrainedChoice, list[int]]]] = [{} for _ in range(NUM_THREADS)]  # by row
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
        self._free.extend(rows)
        self._serve()

    def begin(self, request_id: RequestId, choice: int, row: int, matcher: Matcher, position: int) -> None:
        """position: of the first token that the grammar is for."""
        constrained = ConstrainedChoice(request_id, row, matcher, position, time.monotonic())
        self._choices[request_id, choice] = constrained
        self._submit(row, [functools.partial(self._publish, constrained)], [constrained])

    def push(self, request_id: RequestId, choice: int, token_id: int) -> None:
        """A token of any choice; nothing happens before `flush`, and for one without a grammar nothing at all."""
        constrained = self._choices.get((request_id, choice))
        if constrained is not None:
            constrained.asked_at = time.monotonic()
            news = self._news[constrained.row % NUM_THREADS]
            news.setdefault(constrained.row, (constrained, []))[1].append(token_id)

    def flush(self) -> None:
        """Have the next masks of the choices pushed computed."""
        for news in self._news:
            if news:
                jobs = [functools.partial(self._advance, *item) for item in news.values()]
                self._submit(next(iter(news)), jobs, [constrained for constrained, _ in news.values()])
                news.clear()

    def end(self, request_id: RequestId, choice: int) -> None:
        """The choice needs no masks any more; unknown ones are ignored."""
        constrained = self._choices.pop((request_id, choice), None)
        if constrained is not None:
            constrained.is_open = False
            # behind the jobs that may still write the row
            freed = self._threads[constrained.row % NUM_THREADS].submit(self._table.clear, constrained.row)
            freed.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self.give_back, [constrained.row]))

    def check(self) -> None:
        """Fail requests whose mask does not come; called now and then."""
        if not self._choices:
            return
        limit = time.monotonic() - MASK_TIMEOUT_S
        for constrained in list(self._choices.values()):
            if 0 < constrained.asked_at < limit:
                self._on_failure(constrained.request_id, f"a mask took longer than {MASK_TIMEOUT_S:g} s")

    def _serve(self) -> None:
        while self._queue and (self._queue[0][1].done() or len(self._free) >= self._queue[0][0]):
            count, future = self._queue.popleft()
            if not future.done():
                future.set_result([self._free.popleft() for _ in range(count)])

    def _submit(
        self, row: int, jobs: list[functools.partial[None]], choices: list[ConstrainedChoice]
    ) -> None:
        future = self._threads[row % NUM_THREADS].submit(_run, jobs)
        future.add_done_callback(functools.partial(self._on_done, choices))

    def _on_done(self, choices: list[ConstrainedChoice], future: Future[None]) -> None:
        """On the mask's thread: a fault of ours, or a panic of native code, which is no Exception."""
        error = future.exception()
        if error is not None:
            log.error("masks could not be computed", exc_info=error)
            for constrained in choices:
                self._fail(constrained, str(error))

    # On a thread of the row

    def _advance(self, constrained: ConstrainedChoice, token_ids: list[int]) -> None:
        """token_ids: several where the grammar left no choice."""
        if not constrained.is_open:
            return
        try:
            for token_id in token_ids:
                constrained.matcher.accept(token_id)
        except GrammarError as error:
            self._fail(constrained, str(error))
            return
        constrained.position += len(token_ids)
        self._stats.num_forced_tokens += len(token_ids) - 1
        self._publish(constrained)

    def _publish(self, constrained: ConstrainedChoice) -> None:
        if not constrained.is_open:
            return
        table, row = self._table, constrained.row
        started_at = time.perf_counter()
        try:
            table.clear(row)
            constrained.matcher.fill(table.row(row))
            table.force(row, constrained.matcher.forced()[:MAX_FORCED] if self._fast_forward else ())
        except GrammarError as error:
            self._fail(constrained, str(error))
            return
        table.mark_ready(row, constrained.position)
        constrained.asked_at = 0.0
        self._stats.add(time.perf_counter() - started_at)

    def _fail(self, constrained: ConstrainedChoice, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._on_failure, constrained.request_id, reason)


def _run(jobs: list[functools.partial[None]]) -> None:
    for job in jobs:
        job()
