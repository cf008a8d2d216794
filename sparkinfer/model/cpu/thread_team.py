"""The threads that run programs together: the caller and helpers that sleep between programs. Knows no model."""

from __future__ import annotations

import threading
from functools import cache

from kernels.cpu.program import CONTROL_WORDS, WORDS, jit_help, jit_lead
from sparkinfer.model.cpu.memory import aligned_bytes
from sparkinfer.model.cpu.program import Program

INSTRUCTION_BYTES = 8 * WORDS


class ThreadTeam:
    """One for the process and number of threads (`team_of`); its helpers end with the process."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._control = aligned_bytes(8 * CONTROL_WORDS)
        self._control_address = self._control.ctypes.data
        self._lock = threading.Lock()  # two models of one process take turns
        self._lead = jit_lead.function()
        self._help = jit_help.function() if num_threads > 1 else None
        for thread in range(1, num_threads):
            arguments = (self._control_address, thread)
            threading.Thread(target=self._help, args=arguments, name=f"cpu_{thread}", daemon=True).start()

    def run(self, program: Program, part: range, step: int, num_threads: int | None = None) -> None:
        """Run instructions of a program for the step whose record lies at address `step`; releases the interpreter."""
        instructions = program.address + INSTRUCTION_BYTES * part.start
        with self._lock:
            self._lead(
                self._control_address, instructions, len(part), step, program.counters_address,
                num_threads or self.num_threads,
            )


@cache
def team_of(num_threads: int) -> ThreadTeam:
    return ThreadTeam(num_threads)
