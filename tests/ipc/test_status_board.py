from __future__ import annotations

import os
import time

import pytest

from ipc import status_board
from ipc.segment import Segment
from ipc.status_board import (
    MAX_SERVICE_INFO_BYTES,
    NUM_GAUGES,
    BootPhase,
    GpuGauge,
    HttpGauge,
    StatusBoard,
    TextGauge,
    WorkerState,
)

from .conftest import before_each_instruction

WORKER = """
import os, sys
from ipc.status_board import BootPhase, GpuGauge, StatusBoard, WorkerState
board = StatusBoard.attach(int(sys.argv[1]))
slot = board.slot(1)
assert (slot.generation, slot.state) == (3, WorkerState.BOOTING)
slot.claim()
slot.phase = BootPhase.LOADING_WEIGHTS
slot.set_progress(5 << 40, 6 << 40)
slot.set_gauge(GpuGauge.FREE_KV_BLOCKS, 12)
slot.add_gauge(GpuGauge.STEPS, 2)
slot.add_gauge(GpuGauge.STEPS, 3)
slot.state = WorkerState.READY
print(os.getpid(), flush=True)
sys.stdin.read(1)
slot.beat()
print(slot.heartbeat_ns, flush=True)
sys.stdin.read()
"""

INFO_WRITER = """
import sys
from ipc.status_board import StatusBoard
board = StatusBoard.attach(int(sys.argv[1]))
print("writing", flush=True)
number = 0
while True:
    number += 1
    board.write_service_info(bytes([number % 256]) * (number * 997 % 16384 + 1))
"""


@pytest.fixture
def board():
    board = StatusBoard.create(3)
    yield board
    board.close()


def test_new_board_is_empty(board):
    for index in range(3):
        slot = board.slot(index)
        assert (slot.state, slot.pid, slot.generation, slot.progress) == (WorkerState.EMPTY, 0, 0, (0, 0))
        assert slot.gauges() == [0] * NUM_GAUGES
    assert board.read_service_info() is None


def test_supervisor_reads_what_the_worker_wrote(board, spawn):
    slot = board.slot(1)
    slot.begin(generation=3)
    child = spawn(WORKER, board.fd, fds=(board.fd,))
    assert int(child.stdout.readline()) == child.pid == slot.pid
    assert (slot.state, slot.phase) == (WorkerState.READY, BootPhase.LOADING_WEIGHTS)
    assert slot.progress == (5 << 40, 6 << 40)
    assert slot.gauge(GpuGauge.FREE_KV_BLOCKS) == 12
    assert slot.gauges()[GpuGauge.STEPS] == 5
    before = slot.heartbeat_ns
    child.stdin.write(b"x")
    assert int(child.stdout.readline()) == slot.heartbeat_ns > before
    child.kill()
    child.wait()
    slot.mark_stopped()
    assert (slot.state, slot.pid) == (WorkerState.STOPPED, child.pid)
    slot.begin(generation=4)
    assert (slot.state, slot.pid, slot.generation, slot.progress) == (WorkerState.BOOTING, 0, 4, (0, 0))
    assert (slot.phase, slot.gauges()) == (BootPhase.SPAWNED, [0] * NUM_GAUGES)


def test_heartbeat_is_this_machines_monotonic_clock(board):
    before = time.monotonic_ns()
    board.slot(0).begin(1)
    begun = board.slot(0).heartbeat_ns
    board.slot(0).beat()
    assert before <= begun <= board.slot(0).heartbeat_ns <= time.monotonic_ns()


def test_slots_do_not_touch_each_other(board):
    for index in range(3):
        slot = board.slot(index)
        slot.begin(index + 1)
        slot.claim()
        for gauge in range(NUM_GAUGES):
            slot.set_gauge(gauge, 100 * index + gauge - 50)
    board.write_service_info(b"\xff" * MAX_SERVICE_INFO_BYTES)
    for index in range(3):
        slot = board.slot(index)
        assert (slot.generation, slot.pid, slot.state) == (index + 1, os.getpid(), WorkerState.BOOTING)
        assert slot.gauges() == [100 * index + gauge - 50 for gauge in range(NUM_GAUGES)]
    assert board.read_service_info() == b"\xff" * MAX_SERVICE_INFO_BYTES


@pytest.mark.parametrize("gauges", [GpuGauge, TextGauge, HttpGauge])
def test_every_gauge_has_a_place(gauges):
    assert sorted(gauges) == list(range(len(gauges)))
    assert len(gauges) <= NUM_GAUGES


def test_gauge_without_a_place_is_refused(board):
    with pytest.raises(IndexError):
        board.slot(0).set_gauge(NUM_GAUGES, 7)
    assert board.slot(1).pid == 0


@pytest.mark.parametrize("info", [b"", b"{}", b"x" * MAX_SERVICE_INFO_BYTES, b"shorter again"])
def test_service_info_can_be_replaced(board, info):
    board.write_service_info(b"first")
    assert board.read_service_info() == b"first"
    board.write_service_info(info)
    assert board.read_service_info() == info


def test_service_info_has_a_limit(board):
    with pytest.raises(ValueError, match=f"{MAX_SERVICE_INFO_BYTES + 1} bytes"):
        board.write_service_info(b"x" * (MAX_SERVICE_INFO_BYTES + 1))
    assert board.read_service_info() is None


OLD, NEW = b"o" * 500, b"n" * 700


def test_service_info_is_whole_or_absent_at_every_instruction_of_the_writer(board):
    other = StatusBoard.attach(os.dup(board.fd))
    board.write_service_info(OLD)
    seen: list[bytes | None] = []
    before_each_instruction(
        status_board, lambda: board.write_service_info(NEW), lambda: seen.append(other.read_service_info())
    )
    seen.append(other.read_service_info())
    assert set(seen) == {OLD, None, NEW}
    other.close()


def read_disturbed(reader: StatusBoard, writer: StatusBoard, instruction: int) -> tuple[bytes | None, int]:
    """What a reader gets when the record changes before its n-th instruction, and how many instructions it took."""
    writer.write_service_info(OLD)
    infos: list[bytes | None] = []
    count = 0

    def disturb() -> None:
        nonlocal count
        if count == instruction:
            writer.write_service_info(NEW)
        count += 1

    before_each_instruction(status_board, lambda: infos.append(reader.read_service_info()), disturb)
    return infos[0], count


def test_service_info_that_changes_under_the_reader_is_read_again(board):
    other = StatusBoard.attach(os.dup(board.fd))
    seen = []
    count = 1
    while len(seen) < count:
        info, count = read_disturbed(other, board, len(seen))
        seen.append(info)
    assert count > 30
    assert set(seen) == {OLD, NEW}
    other.close()


def test_service_info_is_whole_or_absent_while_another_process_writes_and_dies(board, spawn):
    for _ in range(5):
        child = spawn(INFO_WRITER, board.fd, fds=(board.fd,))
        assert child.stdout.readline() == b"writing\n"
        for _ in range(2000):
            info = board.read_service_info()
            assert info is None or info == info[:1] * len(info)
        child.kill()
        child.wait()
        left = board.read_service_info()
        assert left is None or left == left[:1] * len(left)
    board.write_service_info(b"successor")
    assert board.read_service_info() == b"successor"


def test_writer_that_died_in_the_middle_leaves_nothing_to_read(board):
    board.write_service_info(b"old")
    version_at = board.segment.size - MAX_SERVICE_INFO_BYTES - 64
    version = board.segment.buffer[version_at]
    board.segment.buffer[version_at] = version + 1
    assert board.read_service_info() is None
    board.write_service_info(b"new")
    assert board.read_service_info() == b"new"
    assert board.segment.buffer[version_at] == version + 2


def test_attach_refuses_another_segment():
    segment = Segment.create("something", 64)
    with pytest.raises(ValueError, match=r"'something' .* is not a status board"):
        StatusBoard.attach(segment.fd)
    segment.close()


def test_totals_span_generations(board: StatusBoard) -> None:
    slot = board.slot(1)
    for generation, steps in enumerate((5, 0, 7), 1):
        slot.begin(generation)
        assert (slot.gauge(GpuGauge.STEPS), slot.gauges()) == (0, [0] * NUM_GAUGES)
        slot.set_gauge(GpuGauge.STEPS, steps)
    assert (slot.gauge(GpuGauge.STEPS), slot.total(GpuGauge.STEPS)) == (7, 12)
    assert board.slot(2).total(GpuGauge.STEPS) == 0
