"""Where large request bodies are parsed: on a thread, so that streams go on. Knows sizes; never what bodies say.

The GIL is handed over every half a millisecond while that thread works.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

LARGE_BYTES = 64 << 10  # takes some 2 ms to parse and check, as conversations and tools are
SWITCH_INTERVAL_S = 0.0005

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class BodyThread:
    """One for a process; one piece of work at a time, in order. Used on the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="bodies")
        self._usual_interval_s = sys.getswitchinterval()
        self._num_waiting = 0

    async def run(self, num_bytes: int, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `call` makes of a body of `num_bytes`; a small one's is done at once."""
        if num_bytes <= LARGE_BYTES:
            return call(*args)
        self._num_waiting += 1
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                sys.setswitchinterval(self._usual_interval_s)
