"""Which job comes next: what others' jobs may cost a cheap one, and that every job comes to its end."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.builder_line import (
    DEAR_S,
    MAX_AGE_S,
    MAX_QUICK,
    MAX_SLOW,
    MAX_YIELDS,
    QUICK_S,
    SLICE_S,
    BuilderLine,
    Job,
)

REPORT_S = 0.05
LIMIT_S = 3.0


class Machine:
    """Two quick builders and two slow ones, each with a processor of its own; `now` is what each has worked so far."""

    def __init__(self) -> None:
        self.line = BuilderLine()
        self.now = 0.0
        self.costs: dict[Job, float] = {}
        self.ended: dict[Job, float] = {}
        self.left_out: list[Job] = []
        self.at_work: list[tuple[Job, float] | None] = [None] * 4  # with what its run has taken

    def job(self, cost_s: float, client_id: int = 0, size: int = 100) -> Job:
        job = Job(b"x" * size, client_id, lambda: True, mock.sentinel.outcome, self.now)
        self.costs[job] = cost_s
        self._put(job)
        return job

    def _put(self, job: Job) -> None:
        left_out = self.line.put(job)
        if left_out is not None:
            self.left_out.append(left_out)

    def step(self) -> None:
        """Each builder works for as long as it says nothing."""
        for number, work in enumerate(self.at_work):
            if work is None:
                job = self.line.pop(is_slow=number >= 2)
                self.at_work[number] = None if job is None else (job, 0.0)
        self.now += REPORT_S
        for number, work in enumerate(self.at_work):
            if work is not None:
                self.at_work[number] = self._worked(*work)

    def _worked(self, job: Job, spent_s: float) -> tuple[Job, float] | None:
        spent_s += REPORT_S
        if spent_s >= min(LIMIT_S, self.costs[job]) - 1e-9:
            self.line.leave(job)
            self.ended[job] = self.now
            return None
        if self.line.goes_on(job, spent_s, REPORT_S):
            return job, spent_s
        self._put(job)
        return None

    def run_until(self, *jobs: Job) -> float:
        """Returns when the last of `jobs` ended."""
        for _ in range(5000):
            if all(job in self.ended or job in self.left_out for job in jobs):
                return max(self.ended.get(job, 0.0) for job in jobs)
            self.step()
        raise AssertionError("never done")


def bombs(machine: Machine, count: int, size: int) -> list[Job]:
    return [machine.job(1e9, client_id=number, size=size) for number in range(count)]


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("num_steps", [0, 3, 20, 100])
def test_a_cheap_job_does_not_wait_for_bombs(size: int, num_steps: int) -> None:
    """At most for first slices, two at a time, whenever it comes; for those of larger jobs not even that."""
    machine = Machine()
    bombs(machine, 16, size)
    for _ in range(num_steps):
        machine.step()
    came_at = machine.now
    waited = machine.run_until(machine.job(0.01, client_id=99)) - came_at
    assert waited <= (16 / 2 if size < 100 else 0) * SLICE_S + 3 * REPORT_S


def test_a_job_that_is_not_cheap_waits_for_no_bomb_to_end() -> None:
    """Not even where all come from one client: a large set of functions, behind ten 1 MB patterns."""
    machine = Machine()
    for _ in range(10):
        machine.job(1e9, size=1_000_000)
    for _ in range(60):
        machine.step()
    came_at = machine.now
    assert machine.run_until(machine.job(0.8, size=50_000)) - came_at < 0.8 + QUICK_S + DEAR_S + 0.2


def test_clients_take_turns() -> None:
    machine = Machine()
    flood = [machine.job(0.05, client_id=1) for _ in range(100)]
    for _ in range(5):
        machine.step()
    came_at = machine.now
    assert machine.run_until(machine.job(0.05, client_id=2)) - came_at < 4 * REPORT_S
    assert machine.run_until(*flood) >= 100 * 0.05 / 2 - 1e-6


def test_a_full_line_turns_away_the_client_that_has_most_in_it() -> None:
    machine = Machine()
    first = [machine.job(0.05, client_id=1) for _ in range(MAX_QUICK)]
    other = machine.job(0.05, client_id=2)
    assert machine.left_out == [first[-1]]
    machine.run_until(*first, other)
    assert other in machine.ended
    assert len(machine.ended) == MAX_QUICK


def test_the_slow_line_is_short() -> None:
    machine = Machine()
    flood = bombs(machine, 3 * MAX_SLOW, 10)
    machine.run_until(*flood)
    assert MAX_SLOW <= len(machine.ended) <= 3 * MAX_SLOW
    assert len(machine.ended) + len(machine.left_out) == len(flood)


def test_old_jobs_leave() -> None:
    machine = Machine()
    old, new = machine.job(1.0), machine.job(1.0)
    new.arrived_at += 1.0
    assert machine.line.take_old(MAX_AGE_S + 0.5) == [old]
    assert machine.line.pop(is_slow=False) is new
    assert machine.line.pop(is_slow=False) is None


@settings(max_examples=60, deadline=None)
@given(arrivals=st.lists(st.tuples(
    st.integers(0, 15),                                   # steps since the one before
    st.sampled_from([0.01, 0.05, 0.2, 0.5, 2.0, 1e9]),    # its cost
    st.integers(0, 3), st.sampled_from([10, 5_000, 1_000_000]),
), min_size=1, max_size=20))  # fmt: skip
def test_every_job_ends_and_nothing_is_done_more_often_than_that(arrivals: list[tuple[int, float, int, int]]) -> None:
    machine = Machine()
    jobs = []
    for steps, cost, client, size in arrivals:
        for _ in range(steps):
            machine.step()
        jobs.append(machine.job(cost, client, size))
    machine.run_until(*jobs)
    assert set(machine.ended) | set(machine.left_out) == set(jobs)
    assert len(machine.ended) + len(machine.left_out) == len(jobs)
    for job in machine.ended:
        assert job.num_yields <= 2 * MAX_YIELDS
    assert machine.line.pop(is_slow=False) is None
    assert machine.line.pop(is_slow=True) is None
