"""Batch sizes that decode steps are prepared for, and how a step's rows fill them. Pure; knows no device."""

from __future__ import annotations

from collections.abc import Sequence


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
    """Rows cut into runs, each with the size of the smallest bucket that holds it.

    >>> split_rows(11, [1, 2, 4, 8])
    [(range(0, 8), 8), (range(8, 11), 4)]
    """
    runs = []
    for start in range(0, num_rows, sizes[-1]):
        rows = range(start, min(start + sizes[-1], num_rows))
        runs.append((rows, next(size for size in sizes if size >= len(rows))))
    return runs
