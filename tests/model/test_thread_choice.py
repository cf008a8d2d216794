"""The number of threads follows what steps took."""

from __future__ import annotations

import collections

from sparkinfer.model.cpu.thread_choice import EXPLORE_EVERY, ThreadChoice


def chosen(choice: ThreadChoice, seconds: dict[int, float], num_rows: int, steps: int) -> collections.Counter[int]:
    counts: collections.Counter[int] = collections.Counter()
    for _ in range(steps):
        threads = choice.choose(num_rows)
        choice.record(num_rows, threads, seconds[threads])
        counts[threads] += 1
    return counts


def test_the_fastest_is_used_and_others_are_tried() -> None:
    counts = chosen(ThreadChoice(8), {8: 1.0, 4: 2.0, 1: 5.0}, 1, 10 * EXPLORE_EVERY)
    assert counts[8] > 9 * EXPLORE_EVERY
    assert counts[4] > 1
    assert counts[1] > 1


def test_it_follows_the_machine() -> None:
    choice = ThreadChoice(2)
    chosen(choice, {2: 1.0, 1: 2.0}, 1, 100)
    assert chosen(choice, {2: 9.0, 1: 2.0}, 1, 100)[1] > 80
    assert chosen(choice, {2: 1.0, 1: 2.0}, 1, 20 * EXPLORE_EVERY)[2] > 10 * EXPLORE_EVERY


def test_sizes_are_apart() -> None:
    choice = ThreadChoice(2)
    chosen(choice, {2: 9.0, 1: 2.0}, 1, 50)
    assert chosen(choice, {2: 1.0, 1: 2.0}, 256, 50)[2] > 40


def test_one_thread_has_no_choice() -> None:
    assert set(chosen(ThreadChoice(1), {1: 1.0}, 1, 2 * EXPLORE_EVERY)) == {1}
