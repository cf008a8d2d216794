"""A made-up trace of chat and agent traffic, in the shape of the public ones: bursts, long tails, shared beginnings.

Sessions start by a Markov-modulated Poisson process with a calm and a busy state. A session has a client, one of a
few dozen system prompts and some turns; each turn sends the whole conversation again, some time after the last answer.
Lengths are lognormal. Everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

NUM_SYSTEM_PROMPTS = 40
NUM_CLIENTS = 8
BUSY_FACTOR = 4.0            # sessions per second in the busy state, relative to the calm one
CALM_S, BUSY_S = 90.0, 20.0  # mean stay in each state
MEAN_TURNS = 2.5
THINK_S = 8.0                # mean pause between an answer and the next turn
URGENT_SHARE = 0.1           # of sessions, with priority -1
MAX_CONTEXT = 16_384
MAX_TOKENS = 1024            # what every request asks for at most; answers are mostly much shorter
VOCAB_SIZE = 150_000


def lognormal(rng: np.random.Generator, median: float, sigma: float, most: int, count: int) -> list[int]:
    return np.clip(rng.lognormal(np.log(median), sigma, count), 1, most).astype(int).tolist()


@dataclass(slots=True)
class Session:
    """One conversation: what its next turn is, and everything said so far."""

    client_id: int
    priority: int
    turns: list[tuple[int, int]]         # new prompt tokens and output tokens of the turns to come, last turn first
    token_ids: list[int]
    turn_starts: list[int] = field(default_factory=list)


class Trace:
    """`num_requests` requests in sessions whose first turns arrive at `starts`."""

    def __init__(self, num_requests: int, requests_per_s: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        turns = rng.geometric(1 / MEAN_TURNS, num_requests)
        num_sessions = int(np.searchsorted(np.cumsum(turns), num_requests)) + 1
        self.turns = turns[:num_sessions].tolist()
        self.turns[-1] -= sum(self.turns) - num_requests
        self.starts = _arrivals(rng, num_sessions, requests_per_s / MEAN_TURNS)
        popularity = 1 / np.arange(1, NUM_SYSTEM_PROMPTS + 1)
        self._system = rng.choice(NUM_SYSTEM_PROMPTS, num_sessions, p=popularity / popularity.sum()).tolist()
        self._clients = (rng.zipf(1.6, num_sessions) % NUM_CLIENTS).tolist()
        self._urgent = (rng.random(num_sessions) < URGENT_SHARE).tolist()
        self._prompts = lognormal(rng, 180, 1.2, 12_000, num_requests)
        self._outputs = lognormal(rng, 90, 0.9, MAX_TOKENS, num_requests)
        self._pool = rng.integers(8, VOCAB_SIZE, 1 << 20)
        sizes = lognormal(rng, 700, 0.9, 8_000, NUM_SYSTEM_PROMPTS)
        self._system_prompts = [self._text(i * 9_001, size) for i, size in enumerate(sizes)]
        self._first = np.concatenate(([0], np.cumsum(self.turns))).tolist()

    def session(self, index: int) -> Session:
        first, last = self._first[index], self._first[index + 1]
        turns = list(zip(self._prompts[first:last], self._outputs[first:last]))[::-1]
        system = self._system_prompts[self._system[index]]
        return Session(self._clients[index], -1 if self._urgent[index] else 0, turns, list(system), [len(system)])

    def add_prompt(self, session: Session, number: int, num_tokens: int) -> list[int]:
        """The next prompt of a session: all that was said and `num_tokens` of new text."""
        session.token_ids += self._text(number * 7_919, num_tokens)
        return session.token_ids[:]

    def _text(self, offset: int, num_tokens: int) -> list[int]:
        start = offset % (len(self._pool) - num_tokens)
        return self._pool[start : start + num_tokens].tolist()


def _arrivals(rng: np.random.Generator, count: int, mean_rate: float) -> list[float]:
    """Times of `count` arrivals in seconds; the two states' rates average to `mean_rate`."""
    calm_rate = mean_rate * (CALM_S + BUSY_S) / (CALM_S + BUSY_FACTOR * BUSY_S)
    times: list[np.ndarray] = []
    now, total, busy = 0.0, 0, False
    while total < count:
        stay = rng.exponential(BUSY_S if busy else CALM_S)
        num = rng.poisson(stay * calm_rate * (BUSY_FACTOR if busy else 1.0))
        times.append(now + np.sort(rng.random(num)) * stay)
        now, total, busy = now + stay, total + num, not busy
    return np.concatenate(times)[:count].tolist()
