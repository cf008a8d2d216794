"""Bucket sizes and the filling of buckets: every row once, in order, little padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.decode_buckets import bucket_sizes, split_rows


@given(st.integers(1, 300), st.integers(0, 7).map(lambda exponent: 2**exponent), st.integers(1, 300))
def test_rows_are_split_once_and_padded_below_double(max_num_seqs: int, largest: int, num_rows: int) -> None:
    sizes = bucket_sizes(max_num_seqs, largest)
    assert sizes == [2**i for i in range(len(sizes))]
    assert sizes[-1] <= largest
    assert sizes[-1] == largest or sizes[-1] < 2 * max_num_seqs
    runs = split_rows(num_rows, sizes)
    assert [row for rows, _ in runs for row in rows] == list(range(num_rows))
    assert all(len(rows) <= size < 2 * len(rows) and size in sizes for rows, size in runs)


def test_little_that_exceeds_a_bucket_goes_alone() -> None:
    sizes = bucket_sizes(256, 128)
    assert [size for _, size in split_rows(72, sizes)] == [64, 8]
    assert [size for _, size in split_rows(73, sizes)] == [128]
    assert [size for _, size in split_rows(65, [32, 64, 128])] == [64, 32]
    assert [size for _, size in split_rows(3, [8])] == [8]


def test_no_rows_need_no_bucket() -> None:
    assert split_rows(0, [1, 2]) == []
