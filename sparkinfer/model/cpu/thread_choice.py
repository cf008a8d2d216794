"""How many threads a step is worth, by measurement: on a busy machine fewer are faster. Knows durations alone."""

from __future__ import annotations

from collections import deque

EXPLORE_EVERY = 24   # steps, one of which is given to another number of threads
REMEMBERED = 5       # durations of each


class ThreadChoice:
    """For steps of similar size: the number of threads whose latest steps were fastest; now and then another."""

    def __init__(self, num_threads: int) -> None:
        """num_threads: the most there are; half of them and one are tried too."""
        self._candidates = sorted({num_threads, max(1, num_threads // 2), 1}, reverse=True)
        self._durations: dict[tuple[int, int], deque[float]] = {}
        self._typical: dict[tuple[int, int], float] = {}  # their medians
        self._steps: dict[int, int] = {}

    def choose(self, num_rows: int) -> int:
        """Threads for the next step of so many rows."""
        size = num_rows.bit_length()
        steps = self._steps[size] = self._steps.get(size, 0) + 1
        untried = [threads for threads in self._candidates if (size, threads) not in self._typical]
        if untried:
            return untried[0]
        best = min(self._candidates, key=lambda threads: self._typical[size, threads])
        if steps % EXPLORE_EVERY or len(self._candidates) == 1:
            return best
        others = [threads for threads in self._candidates if threads != best]
        return others[steps // EXPLORE_EVERY % len(others)]

    def record(self, num_rows: int, num_threads: int, seconds: float) -> None:
        """What a step took."""
        key = num_rows.bit_length(), num_threads
        durations = self._durations.setdefault(key, deque(maxlen=REMEMBERED))
        durations.append(seconds)
        self._typical[key] = sorted(durations)[len(durations) // 2]
