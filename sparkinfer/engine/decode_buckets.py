"""Batch sizes that decode steps are prepared for, and how a step's rows fill them. Pure; knows no device."""

from __future__ import annotations

from collections.abc import Sequence

LITTLE = 8  # part of a bucket's rows that may exceed it: 64 and 8 rows of a 35B-A3B take less time than 128


def bucket_sizes(max_num_seqs: int, largest: int) -> list[int]:
    """1, 2, 4, ... up to the first that holds max_num_seqs rows, `largest` at most.

    >>> bucket_sizes(6, 64), bucket_sizes(64, 8)
    ([1, 2, 4, 8], [1, 2, 4, 8])
    """
    sizes = [1]
    while sizes[-1] < min(max_num_seqs, largest):
        sizes.append(2 * sizes[-1])
    return sizes


def split_rows(num_rows: int, sizes: Sequence[int]) -> list[tuple[range, int]]:
    """Rows cut into runs, each with the size of the smallest bucket that holds it; rows that exceed a bucket by little
    get a run of their own, which takes less time than a bucket of twice as many.

    >>> split_rows(11, [1, 2, 4, 8])
    [(range(0, 8), 8), (range(8, 11), 4)]
    >>> split_rows(70, [1, 2, 4, 8, 16, 32, 64, 128])
    [(range(0, 64), 64), (range(64, 70), 8)]
    """
    runs, start = [], 0
    while start < num_rows:
        left = num_rows - start
        size = next((size for size in sizes if size >= left), sizes[-1])
        filled = max((size for size in sizes if size <= left), default=0)
        if (left - filled) * LITTLE <= filled:
            size = filled
        rows = range(start, start + min(size, left))
        runs.append((rows, size))
        start = rows.stop
    return runs
