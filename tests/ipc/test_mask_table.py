from __future__ import annotations

import os

import numpy as np
import pytest

from ipc.mask_table import MaskTable
from ipc.segment import Segment

WRITER = """
import sys
import numpy as np
from ipc.mask_table import MaskTable
table = MaskTable.attach(int(sys.argv[1]))
row = int(sys.argv[2])
for position, _ in enumerate(sys.stdin.buffer.raw.read(1) for _ in range(int(sys.argv[3]))):
    table.publish(row, position, np.full(table.num_words, position * 3 + row, np.int32))
"""


@pytest.fixture
def table():
    table = MaskTable.create(num_rows=4, vocab_size=1001)
    yield table
    table.close()


def test_new_table_has_no_masks(table):
    assert table.num_words == 32
    for row in range(4):
        assert not any(table.ready(row, position) for position in (0, 1, 2**63))


def test_reader_in_another_mapping_sees_the_mask_of_its_position(table):
    other = MaskTable.attach(os.dup(table.fd))
    assert (other.num_rows, other.num_words) == (4, 32)
    mask = np.arange(32, dtype=np.int32) - 16
    table.publish(2, 7, mask)
    assert other.ready(2, 7)
    assert not other.ready(2, 6)
    assert not other.ready(2, 8)
    assert not other.ready(1, 7)
    np.testing.assert_array_equal(other.row(2), mask)
    table.clear(2)
    assert not other.ready(2, 7)
    other.close()


def test_rows_do_not_touch_each_other(table):
    for row in range(4):
        table.publish(row, row, np.full(32, -1 - row, np.int32))
    for row in range(4):
        assert [table.ready(row, position) for position in range(4)] == [position == row for position in range(4)]
        assert table.row(row).tolist() == [-1 - row] * 32


def test_bits_are_tokens(table):
    mask = np.zeros(32, np.int32)
    mask[1000 // 32] = 1 << (1000 % 32)
    table.publish(0, 0, mask)
    allowed = np.unpackbits(table.row(0).view(np.uint8), bitorder="little")
    assert allowed.nonzero()[0].tolist() == [1000]


@pytest.mark.parametrize("vocab_size", [1, 32, 33, 151_936, 248_320])
def test_any_vocabulary_fits(vocab_size):
    table = MaskTable.create(2, vocab_size)
    assert table.row(1).shape == (-(-vocab_size // 32),)
    assert table.row(1).ctypes.data % 64 == 0
    table.publish(1, 1, np.full(table.num_words, -1, np.int32))
    assert not table.row(0).any()
    table.close()


def test_mask_of_another_length_is_refused_and_not_published(table):
    table.publish(0, 1, np.zeros(32, np.int32))
    with pytest.raises(ValueError, match="broadcast"):
        table.publish(0, 2, np.zeros(31, np.int32))
    assert not table.ready(0, 1)
    assert not table.ready(0, 2)


def test_table_without_rows_can_be_passed_on():
    table = MaskTable.create(0, 1000)
    other = MaskTable.attach(os.dup(table.fd))
    assert other.num_rows == 0
    other.close()
    table.close()


def test_two_writers_step_two_rows_under_one_reader(table, spawn):
    steps = 300
    children = [spawn(WRITER, table.fd, row, steps, fds=(table.fd,)) for row in (0, 3)]
    for position in range(steps):
        for child in children:
            child.stdin.write(b"x")
        for row in (0, 3):
            while not table.ready(row, position):
                assert not table.ready(row, position + 1)
            assert table.row(row).tolist() == [position * 3 + row] * 32
    assert [child.wait() for child in children] == [0, 0]


def test_attach_refuses_another_segment():
    segment = Segment.create("something", 128)
    with pytest.raises(ValueError, match=r"'something' .* is not a mask table"):
        MaskTable.attach(segment.fd)
    segment.close()


def test_close_waits_for_rows(table):
    row = table.row(0)
    with pytest.raises(BufferError):
        table.close()
    del row
    table.close()
