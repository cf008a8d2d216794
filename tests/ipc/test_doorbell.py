from __future__ import annotations

import asyncio
import os
import select

import pytest
import uvloop

from ipc.doorbell import Doorbell


def test_many_rings_are_one_wake_up():
    doorbell = Doorbell.create()
    assert not doorbell.acknowledge()
    for _ in range(5):
        doorbell.ring()
    assert doorbell.acknowledge()
    assert not doorbell.acknowledge()
    doorbell.close()
    doorbell.close()


def test_ringing_never_blocks():
    doorbell = Doorbell.create()
    os.eventfd_write(doorbell.fd, 2**64 - 2)  # the counter's maximum
    doorbell.ring()
    assert doorbell.acknowledge()
    doorbell.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_ring_of_another_process_wakes_an_event_loop(spawn, new_loop):
    doorbell = Doorbell.create()
    code = (
        "import sys; from ipc.doorbell import Doorbell\n"
        "doorbell = Doorbell.attach(int(sys.argv[1])); sys.stdin.read(1); doorbell.ring()"
    )
    child = spawn(code, doorbell.fd, fds=(doorbell.fd,))

    async def wait() -> bool:
        rung = asyncio.Event()
        asyncio.get_running_loop().add_reader(doorbell.fileno(), rung.set)
        child.stdin.write(b"x")
        await rung.wait()
        asyncio.get_running_loop().remove_reader(doorbell.fileno())
        return doorbell.acknowledge()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(wait())
    doorbell.close()


def test_ring_without_listener_waits_for_the_next_one():
    doorbell = Doorbell.create()
    doorbell.ring()
    successor = Doorbell.attach(os.dup(doorbell.fd))
    assert select.select([successor], [], [], 0)[0] == [successor]
    assert successor.acknowledge()
    successor.close()
    doorbell.close()
