from __future__ import annotations

import asyncio
import os
import select
import signal

import pytest
import uvloop

from ipc.peer_death import PeerDeath

PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""

CHILD = """
import signal, sys
from ipc.peer_death import die_with_parent
die_with_parent(int(sys.argv[1]))
print("alive", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_event_loop_learns_of_a_death(spawn, new_loop):
    child = spawn("import signal; signal.pause()")
    peer = PeerDeath(child.pid)
    assert not peer.has_died()

    async def wait() -> None:
        died = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(peer.fileno(), died.set)
        child.kill()
        await died.wait()
        loop.remove_reader(peer.fileno())

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(wait())
    assert peer.has_died()  # a zombie still, nobody has collected it
    assert child.wait() == -signal.SIGKILL
    assert peer.has_died()
    peer.close()
    peer.close()


def test_process_that_is_gone_already(spawn):
    child = spawn("pass")
    child.wait()
    with pytest.raises(ProcessLookupError):
        PeerDeath(child.pid)


def test_child_dies_with_its_parent(spawn):
    parent = spawn(PARENT, CHILD)
    pid, word = parent.stdout.readline().split()
    assert word == b"alive"
    orphan = PeerDeath(int(pid))
    assert not orphan.has_died()
    parent.kill()
    assert select.select([orphan], [], [], 30.0)[0] == [orphan]
    orphan.close()


def test_child_whose_parent_is_gone_dies_at_once(spawn):
    child = spawn(CHILD, os.getppid())
    assert child.wait() == -signal.SIGKILL
    assert child.stdout.read() == b""
