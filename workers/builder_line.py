"""Which job the grammar builders do next. Knows what jobs have cost so far; never processes or grammars.

A job begins in the quick line. One that outlasts its slice of a processor's time makes way for those that have had
less, and starts anew behind them; what is not cheap goes on in the slow line, which has builders of its own. So a
request waits for the first slices of others, not for their work. Among equals the client that was served least comes
first, then the smaller job.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from sparkinfer.engine.fair_share import FairShare
from workers.grammar_frame import Built, Refused, Working
from workers.shared_work import IsWanted

SLICE_S = 0.05               # of a processor's time: ten times what a usual schema takes
QUICK_S = 0.3                # what takes longer is slow
DEAR_S = 1.0                 # what takes longer is refused rather than put off for ever
SLICES_S = (SLICE_S, QUICK_S, DEAR_S)
MAX_YIELDS = 2               # in the quick line, then a job is slow; there as often again, then it goes on to its end
RUN_MS = 10                  # what a client is charged for any run, beside the slices that it uses up
MAX_QUICK, MAX_SLOW = 256, 16  # jobs in line
MAX_AGE_S = 30.0             # by the clock


@dataclass(slots=True, eq=False)
class Job:
    """What one or several requests wait for."""

    payload: bytes                    # a GrammarSpec or a CallCheck in msgpack
    client_id: int
    is_wanted: IsWanted
    outcome: asyncio.Future[Built | Refused | None]  # None: it took too long
    arrived_at: float                 # monotonic seconds
    spent_s: float = 0.0              # of a processor's time, in its longest run
    num_yields: int = 0
    number: int = -1                  # by arrival
    working_on: Working | None = None  # what was begun last

    @property
    def level(self) -> int:
        """How many slices it has used up."""
        return bisect_right(SLICES_S, self.spent_s)

    @property
    def is_slow(self) -> bool:
        return self.spent_s >= QUICK_S or self.num_yields >= MAX_YIELDS


class BuilderLine:
    """Jobs in line, and those at work. Each belongs to the line from `put` to `leave`."""

    def __init__(self) -> None:
        self._waiting: list[Job] = []
        self._fair_share = FairShare()    # in milliseconds
        self._num_arrived = 0

    def put(self, job: Job) -> Job | None:
        """Line up; a job that made way comes back as it is. Returns one that there is no room for and that has left."""
        if job.number < 0:
            job.number = self._num_arrived
            self._num_arrived += 1
            self._fair_share.enter(job.client_id)
        self._waiting.append(job)
        rivals = [other for other in self._waiting if other.is_slow == job.is_slow]
        if len(rivals) <= (MAX_SLOW if job.is_slow else MAX_QUICK):
            return None
        counts = Counter(other.client_id for other in rivals)
        most = max(counts.values())
        last = max((other for other in rivals if counts[other.client_id] == most), key=self._rank)
        self._waiting.remove(last)
        self.leave(last)
        return last

    def has(self, is_slow: bool) -> bool:
        """Whether some job waits in the quick or the slow line."""
        return any(job.is_slow == is_slow for job in self._waiting)

    def pop(self, is_slow: bool) -> Job | None:
        """The job that a builder of the quick or the slow line does next."""
        job = min((job for job in self._waiting if job.is_slow == is_slow), key=self._rank, default=None)
        if job is not None:
            self._waiting.remove(job)
            self._fair_share.charge(job.client_id, RUN_MS)
        return job

    def goes_on(self, job: Job, spent_s: float, news_s: float) -> bool:
        """Whether a job at work goes on; otherwise it is to be put in line again.

        spent_s:  of a processor's time, since it was begun
        news_s:   of that, since this was asked last
        """
        was_slow = job.is_slow
        self._fair_share.charge(job.client_id, round(1000 * news_s))
        job.spent_s = max(job.spent_s, spent_s)
        if was_slow != job.is_slow:
            return False
        if job.num_yields < 2 * MAX_YIELDS and any(
            other.is_slow == was_slow and other.level < job.level for other in self._waiting
        ):
            job.num_yields += 1
            return False
        return True

    def take_old(self, now: float) -> list[Job]:
        """Jobs that have been here for too long leave, those in line; one at work is for its builder to end."""
        old = [job for job in self._waiting if now - job.arrived_at > MAX_AGE_S]
        for job in old:
            self._waiting.remove(job)
            self.leave(job)
        return old

    def leave(self, job: Job) -> None:
        """A job has come to its end, whatever it was."""
        self._fair_share.leave(job.client_id)

    def _rank(self, job: Job) -> tuple[int, int, int, int]:
        return job.level, self._fair_share.served(job.client_id), len(job.payload), job.number
