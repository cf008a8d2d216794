"""Dying with the parent. Knows nothing of what either of them does."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
