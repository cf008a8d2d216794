"""Learning of another process's death, and dying with the parent.

Owns one pidfd per peer; never knows what the peer did.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class PeerDeath:
    """A pidfd: readable once the process has ended, child or not. Owns the descriptor."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError when there is no such process any more."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """For `loop.add_reader` and `select`. NOTE: stays readable; remove the reader when it fires."""
        return self._fd

    def has_died(self) -> bool:
        """True once the process has ended, whether or not its parent has collected it."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Give the descriptor back. Closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def die_with_parent(expected_ppid: int) -> None:
    """Have the kernel kill this process (SIGKILL) when its parent ends; kills it now if that has happened already.

    expected_ppid: pid of the process that spawned this one, as told by it. NOTE: the kernel's "parent" is the thread
    that forked; the supervisor must spawn from a thread that lives as long as it does.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    if os.getppid() != expected_ppid:
        os.kill(os.getpid(), signal.SIGKILL)
