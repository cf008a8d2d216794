"""What is opened is closed again, also when something fails half-way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ipc.doorbell import Doorbell
from ipc.mask_table import MaskTable
from ipc.ring import RingReader, RingWriter, create_ring
from ipc.segment import Segment
from ipc.status_board import StatusBoard


def open_descriptors() -> dict[str, str]:
    """Descriptor -> what it is; the one that lists the directory left out."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


def use_ring(_: Path) -> None:
    segment, doorbell = create_ring("leak", 64), Doorbell.create()
    other, other_bell = Segment.attach(os.dup(segment.fd), segment.size), Doorbell.attach(os.dup(doorbell.fd))
    writer, reader = RingWriter(segment, doorbell), RingReader(other, other_bell)
    writer.push(b"x")
    writer.ring()
    frames = reader.drain()
    for owner in (writer, reader, segment, other, doorbell, other_bell):
        owner.close()
    assert frames == [b"x"]


def use_status_board(_: Path) -> None:
    board = StatusBoard.create(2)
    other = StatusBoard.attach(os.dup(board.fd))
    other.slot(0).claim()
    board.write_service_info(b"{}")
    board.close()
    other.close()
    other.close()


def use_mask_table(_: Path) -> None:
    table = MaskTable.create(2, 100)
    other = MaskTable.attach(os.dup(table.fd))
    table.publish(0, 1, np.ones(4, np.int32))
    table.close()
    other.close()
    other.close()


def use_refused(_: Path) -> None:
    segment = Segment.create("small", 64)
    for attach in (StatusBoard.attach, MaskTable.attach):
        fd = os.dup(segment.fd)
        with pytest.raises(ValueError, match="'small'"):
            attach(fd)
        os.close(fd)  # still ours
    with pytest.raises(ValueError, match="positive"):
        Segment.create("empty", 0)
    segment.close()


@pytest.mark.parametrize("use", [use_ring, use_status_board, use_mask_table, use_refused])
def test_nothing_stays_open(tmp_path, use: Callable[[Path], None]):
    use(tmp_path)
    before = open_descriptors()
    for _ in range(3):
        use(tmp_path)
    assert open_descriptors() == before


CHANNELS = """
import os, sys, zmq
from ipc.channel import Inbox, Outbox
from ipc.codec import ENCODER, TEXT_INBOX
from ipc.endpoints import inbox
from ipc.messages import Abort
before = os.listdir("/proc/self/fd")
for generation in range(50):
    endpoint = inbox(sys.argv[1], "text-0", generation)
    receiver, sender = Inbox(endpoint, TEXT_INBOX), Outbox(endpoint, ENCODER)
    assert sender.send(Abort(1)) and receiver.poll(30.0)
    receiver.close()
    sender.close()
unread = Outbox(inbox(sys.argv[1], "nobody", 0), ENCODER)
assert unread.send(Abort(1))
unread.close()
zmq.Context.instance().term()  # waits for ever if a socket is open, or lingers over what nobody reads
print(os.listdir("/proc/self/fd") == before)
"""


def test_channels_are_closed_when_they_say_so(tmp_path, spawn):
    assert spawn(CHANNELS, tmp_path).stdout.read() == b"True\n"
