"""A forward pass as a list of instructions, run by several threads in one compiled call.

An instruction is a row of WORDS int64: the address of a kernel, how many units of work there are, and the kernel's own
arguments. kernel(arguments, step, begin, end, thread) does the units [begin, end), in any order and by any thread.
Threads take portions of an instruction from a counter, smaller ones towards its end; whoever comes late finds less to
do, so a thread that the system has suspended holds up at most the portion that it took. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from llvmlite import ir

from kernels.cpu.compile_cache import object_file
from kernels.cpu.machine import callable_at, load, object_of
from kernels.cpu.simd import Int, Void, address, call, load_i64, store_i64
from kernels.cpu.translate import module_of
from kernels.cpu.values import I32, I64, Intrinsic, Part

WORDS = 48
KERNEL, FACTOR, COUNT, WAITS, GRAIN, ARGUMENTS = 0, 1, 2, 3, 4, 8  # units = FACTOR * step[COUNT]
COUNTER_BYTES = 128                                                # taken | done, a cache line each

# Words of the record that describes a step.
(
    ONE, NUM_ROWS, NUM_WORK, NUM_SLIDING_WORK, NUM_SPANS, NUM_LOGITS, NUM_PAIRS, NUM_ACTIVE, SCRATCH, SCRATCH_BYTES,
    POSITIONS, SLOTS, TABLES, TABLE_BYTES, BLOCK_SIZE, WORK, SLIDING_WORK, PARTS, SLIDING_PARTS, PARTIALS, SPANS,
    LOGIT_ROWS, LOGITS, COS, SIN, SLIDING_COS, SLIDING_SIN, TOKENS, STEP_WORDS,
) = range(29)

# Words of the record through which a caller and its helpers meet.
GATE, INSIDE, PROGRAM, LENGTH, STEP, COUNTERS, THREADS, CONTROL_WORDS = 0, 8, 16, 17, 18, 19, 20, 32

SPINS = 4000          # polls before a waiting thread lets others run
FUTEX, FUTEX_WAIT, FUTEX_WAKE = 202, 128, 129

class Kernel:
    """A function of int64, compiled or taken from the cache on disk when it is first needed."""

    def __init__(self, function: Any) -> None:
        self.name: str = function.__name__
        self._function = function
        self._num_arguments: int = function.__code__.co_argcount
        self._object: bytes | None = None
        self._address = 0

    def prepare(self) -> bool:
        """Have it compiled, if not loaded; False if another process is just compiling it."""
        self._object = self._object or object_file(self.name, self._make, waits=False)
        return self._object is not None

    def compile(self) -> int:
        """The address that instructions name."""
        if not self._address:
            found = self._object or object_file(self.name, self._make)
            assert found is not None
            self._address = load(found, self.name)
        return self._address

    def _make(self) -> bytes:
        return object_of(module_of(self.name, self._function, self._num_arguments))

    def function(self) -> Any:
        """To be called from Python; it releases the interpreter."""
        return callable_at(self.compile(), self._num_arguments)


def jit_kernel(function: Any) -> Kernel:
    """Make a kernel of a function of int64: five, where instructions name it."""
    return Kernel(function)


def jit_part(result: Any, *arguments: Any) -> Any:
    """A function of fixed types that kernels call; it becomes a part of each and is not compiled by itself."""
    return lambda function: Part(function, result, arguments)


def specialised(function: FunctionType, kind: str, names: dict[str, Any]) -> Any:
    """The function with other values for some of its module's names; a function of a name of its own."""
    name = f"{function.__name__.strip('_')}_{kind}".lower()
    return FunctionType(function.__code__, {**function.__globals__, **names}, name)


def jit_kernels(names: Callable[[str], dict[str, Any]]) -> Callable[[Any], Callable[[str], Kernel]]:
    """Make kernels of a function, one for each kind: with the module's names that names(kind) replaces."""

    def decorate(function: Any) -> Callable[[str], Kernel]:
        return cache(lambda kind: Kernel(specialised(function, kind, names(kind))))

    return decorate


def _call_kernel(b: Any, kernel: Any, *args: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * 5)
    b.call(b.inttoptr(kernel, kind.as_pointer()), args)


def _fetch_add(b: Any, at: Any, amount: Any) -> Any:
    return b.atomic_rmw("add", address(b, at, 0, I64), amount, "seq_cst")


def _read(b: Any, at: Any) -> Any:
    return b.load_atomic(address(b, at, 0, I64), "seq_cst", 8)


def _write(b: Any, at: Any, value: Any) -> None:
    b.atomic_rmw("xchg", address(b, at, 0, I64), value, "seq_cst")


def _futex(b: Any, at: Any, operation: Any, value: Any) -> None:
    zero = ir.Constant(I64, 0)
    call(b, "syscall", I64, ir.Constant(I64, FUTEX), at, operation, value, zero, zero, zero)


call_kernel = Intrinsic(Void, [Int] * 6, _call_kernel)
fetch_add = Intrinsic(Int, [Int] * 2, _fetch_add)
read = Intrinsic(Int, [Int], _read)
write = Intrinsic(Void, [Int] * 2, _write)
futex = Intrinsic(Void, [Int] * 3, _futex)
pause = Intrinsic(Void, (), lambda b: call(b, "llvm.x86.sse2.pause", ir.VoidType()))
let_others_run = Intrinsic(Void, (), lambda b: call(b, "sched_yield", I32))


@jit_part(Int, Int, Int)
def jit_wait(counter: int, wanted: int) -> int:
    """Until the counter has reached `wanted`."""
    spins = 0
    while read(counter) < wanted:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            let_others_run()
    return spins


@jit_part(Void, *[Int] * 6)
def jit_run(program: int, length: int, step: int, counters: int, thread: int, num_threads: int) -> None:
    """A thread's share of all instructions."""
    waited = 0
    for i in range(length):
        at = program + i * WORDS * 8
        units = load_i64(at + 8 * FACTOR) * load_i64(step + 8 * load_i64(at + 8 * COUNT))
        if load_i64(at + 8 * WAITS) != 0:
            for j in range(waited, i):
                before = program + j * WORDS * 8
                wanted = load_i64(before + 8 * FACTOR) * load_i64(step + 8 * load_i64(before + 8 * COUNT))
                jit_wait(counters + j * COUNTER_BYTES + 64, wanted)
            waited = i
        grain, counter, kernel = load_i64(at + 8 * GRAIN), counters + i * COUNTER_BYTES, load_i64(at + 8 * KERNEL)
        portion = units if num_threads == 1 else max(grain, (units - read(counter)) // (2 * num_threads))
        begin = fetch_add(counter, portion) if read(counter) < units else units
        while begin < units:
            end = min(begin + portion, units)
            call_kernel(kernel, at + 8 * ARGUMENTS, step, begin, end, thread)
            fetch_add(counter + 64, end - begin)
            portion = max(grain, (units - end) // (2 * num_threads))
            begin = fetch_add(counter, portion) if end < units else units
    for j in range(waited, length):
        before = program + j * WORDS * 8
        wanted = load_i64(before + 8 * FACTOR) * load_i64(step + 8 * load_i64(before + 8 * COUNT))
        jit_wait(counters + j * COUNTER_BYTES + 64, wanted)




@jit_kernel
def jit_lead(control: int, program: int, length: int, step: int, counters: int, num_threads: int) -> None:
    """Run a program as the first of a team's threads."""
    for i in range(length):
        store_i64(counters + i * COUNTER_BYTES, 0)
        store_i64(counters + i * COUNTER_BYTES + 64, 0)
    if num_threads == 1:
        jit_run(program, length, step, counters, 0, 1)
        return
    store_i64(control + 8 * PROGRAM, program)
    store_i64(control + 8 * LENGTH, length)
    store_i64(control + 8 * STEP, step)
    store_i64(control + 8 * COUNTERS, counters)
    store_i64(control + 8 * THREADS, num_threads)
    gate = control + 8 * GATE
    write(gate, read(gate) + 1)  # odd: open
    futex(gate, FUTEX_WAKE, num_threads)
    jit_run(program, length, step, counters, 0, num_threads)
    write(gate, read(gate) + 1)
    spins = 0
    while read(control + 8 * INSIDE) != 0:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            let_others_run()


@jit_kernel
def jit_help(control: int, thread: int) -> None:
    """Take part, for ever, in every program for which the first thread wants so many."""
    gate, inside, last = control + 8 * GATE, control + 8 * INSIDE, 0
    while True:
        seen = read(gate)
        if seen % 2 == 0 or seen == last:
            futex(gate, FUTEX_WAIT, seen)
            continue
        fetch_add(inside, 1)
        num_threads = load_i64(control + 8 * THREADS)
        if read(gate) == seen and thread < num_threads:
            jit_run(
                load_i64(control + 8 * PROGRAM), load_i64(control + 8 * LENGTH), load_i64(control + 8 * STEP),
                load_i64(control + 8 * COUNTERS), thread, num_threads,
            )
        last = seen
        fetch_add(inside, -1)
