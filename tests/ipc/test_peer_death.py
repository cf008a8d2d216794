from __future__ import annotations

import os
import select
import signal

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


def test_child_dies_with_its_parent(spawn):
    parent = spawn(PARENT, CHILD)
    pid, word = parent.stdout.readline().split()
    assert word == b"alive"
    orphan = os.pidfd_open(int(pid))
    assert select.select([orphan], [], [], 0)[0] == []
    parent.kill()
    assert select.select([orphan], [], [], 30.0)[0] == [orphan]
    os.close(orphan)


def test_child_whose_parent_is_gone_dies_at_once(spawn):
    child = spawn(CHILD, os.getppid())
    assert child.wait() == -signal.SIGKILL
    assert child.stdout.read() == b""
