"""Writes a program for kernels/cpu/program.py: instructions, the buffers between them, what is filled in later.

Knows kernels' words; never layers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.cpu import program as words
from kernels.cpu.embed import embed_kernel
from kernels.cpu.matmul import matmul_kernel
from kernels.cpu.program import Kernel
from kernels.cpu.quant_tile import RECORD_BYTES
from sparkinfer.model.cpu.memory import aligned_bytes, aligned_copy
from sparkinfer.model.cpu.weights import PackedMatrix

PORTION_BYTES = 8192  # of weights: the least worth taking from the counter
Word = int | float  # floats are stored as the bits of a double


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of one width: floats, or records."""

    address: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Activations:
    """The input of matrices in the forms that their kinds read: f32 rows, records, or both."""

    floats: Buffer | None
    records: Buffer | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A word that is known once there are pools: an attribute of a layer's pool, its address, a kernel for its type."""

    field: str
    layer: int


class ProgramWriter:
    """max_rows: most rows of a step that runs the program."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._rows: list[npt.NDArray[np.int64]] = []
        self._kernels: list[Kernel | Pending] = []
        self._body_length = 0
        self._pending: list[tuple[int, int, Pending]] = []
        self._buffers: dict[str, Buffer] = {}
        self._kept: list[Any] = []
        self._zeros = self.keep(np.zeros(16, np.float32))

    def keep(self, array: npt.NDArray[Any] | Tensor) -> int:
        """Address of an aligned copy that lives as long as the program."""
        copy = aligned_copy(array.numpy() if isinstance(array, Tensor) else array)
        self._kept.append(copy)
        return copy.ctypes.data

    def floats(self, name: str, width: int, rows_per_row: int = 1) -> Buffer:
        """Scratch rows of `width` floats; the same name, the same rows."""
        return self._buffer(name, -(-width // 16) * 64, rows_per_row)

    def records(self, name: str, width: int, rows_per_row: int = 1) -> Buffer:
        """Scratch rows of `width` quantised values."""
        return self._buffer(name, width // 32 * RECORD_BYTES, rows_per_row)

    def activations(
        self, name: str, width: int, matrices: Sequence[PackedMatrix], rows_per_row: int = 1,
        floats: Buffer | None = None,
    ) -> Activations:
        """Buffers for the input of `matrices`, as they want it; floats: where they are anyway."""
        wants_records = any(matrix.is_quantised for matrix in matrices)
        wants_floats = any(not matrix.is_quantised for matrix in matrices)
        return Activations(
            (floats or self.floats(f"{name} floats", width, rows_per_row)) if wants_floats else None,
            self.records(f"{name} records", width, rows_per_row) if wants_records else None,
        )

    def write(
        self, kernel: Kernel | Pending, count: int, factor: int, *arguments: Word | Pending | Buffer | None,
        waits: bool = True, grain: int = 1,
    ) -> None:
        """An instruction of factor * step[count] units; a Buffer stands for its address and row bytes, None for two 0.

        waits: for all instructions before it
        """
        row = np.zeros(words.WORDS, np.int64)
        row[[words.FACTOR, words.COUNT, words.WAITS, words.GRAIN]] = factor, count, waits, grain
        self._kernels.append(kernel)
        at = words.ARGUMENTS
        for argument in arguments:
            if isinstance(argument, Pending):
                self._pending.append((len(self._rows), at, argument))
                at += 1
                continue
            for value in _values(argument):
                row[at] = struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else value
                at += 1
        self._rows.append(row)

    def matmul(
        self,
        matrices: Sequence[PackedMatrix],
        x: Activations,
        out: Buffer | None,
        adds: bool = False,
        bias: Tensor | None = None,
        count: int = words.NUM_ROWS,
        experts: tuple[int, int] | None = None,
    ) -> None:
        """out (None: the logits) = matrices side by side times x, plus what it was, or a bias.

        experts: for stacks, addresses of the lists that kernels/cpu/moe.py makes: first rows, active matrices
        """
        offset = 0
        bias_address = 0 if bias is None else self.keep(bias)
        for matrix in matrices:
            self._kept.append(matrix)
            source = x.records if matrix.is_quantised else x.floats
            assert source is not None
            target = Buffer(0, 4 * matrix.num_out) if out is None else Buffer(out.address + 4 * offset, out.row_bytes)
            init, init_bytes, init_step = self._zeros, 0, 0
            if adds:
                init, init_bytes, init_step = target.address, target.row_bytes, 64
            elif bias is not None:
                init, init_step = bias_address + 4 * offset, 64
            unit_count = words.ONE if experts is None else words.NUM_ACTIVE
            self.write(
                matmul_kernel(matrix.kind), unit_count, matrix.num_panels, matrix.panels.ctypes.data,
                matrix.panels.shape[1], matrix.num_panels, source, target, matrix.num_out, init, init_bytes, init_step,
                matrix.num_columns, count, *(experts or (0, 0)), waits=offset == 0,
                grain=max(1, PORTION_BYTES // matrix.panels.shape[1]),
            )
            offset += matrix.num_out

    def embedding(self, table: PackedMatrix, factor: float, out: Buffer) -> None:
        """out = factor * the table's rows for the step's tokens."""
        self._kept.append(table)
        self.write(
            embed_kernel(table.kind), words.NUM_ROWS, 1, table.panels.ctypes.data, table.panels.shape[1], factor, out,
            table.num_columns,
        )

    def end_of_body(self) -> None:
        """What follows is the head."""
        self._body_length = len(self._rows)

    def finish(self) -> Program:
        """The program, its kernels compiled; it keeps the memory that it names."""
        for kernel in dict.fromkeys(self._kernels):
            if isinstance(kernel, Kernel):
                kernel.prepare()  # first what no other process is compiling meanwhile
        for index, kernel in enumerate(self._kernels):
            if isinstance(kernel, Pending):
                self._pending.append((index, words.KERNEL, kernel))
            else:
                self._rows[index][words.KERNEL] = kernel.compile()
        return Program(np.ascontiguousarray(np.stack(self._rows)), self._body_length, self._pending, self._kept)

    def _buffer(self, name: str, row_bytes: int, rows_per_row: int) -> Buffer:
        key = f"{name} {row_bytes}"
        if key not in self._buffers:
            memory = aligned_bytes(row_bytes * self.max_rows * rows_per_row)
            self._kept.append(memory)
            self._buffers[key] = Buffer(memory.ctypes.data, row_bytes)
        return self._buffers[key]


def _values(argument: Word | Buffer | None) -> tuple[Word, ...]:
    if argument is None:
        return 0, 0
    return (argument.address, argument.row_bytes) if isinstance(argument, Buffer) else (argument,)


class Program:
    """Finished instructions; `kept` is the memory that they name.

    body, head, whole: ranges of instructions: embedding to hidden states, hidden states to logits, both
    """

    def __init__(
        self, instructions: npt.NDArray[np.int64], body_length: int, pending: list[tuple[int, int, Pending]],
        kept: list[Any],
    ) -> None:
        self.instructions = instructions
        self.body, self.head = range(body_length), range(body_length, len(instructions))
        self.whole = range(len(instructions))
        self._counters = aligned_bytes(len(instructions) * words.COUNTER_BYTES)
        self.address, self.counters_address = instructions.ctypes.data, self._counters.ctypes.data
        self._pending, self._kept = pending, kept

    def fill(self, values: dict[str, list[int]]) -> None:
        """Put in what was pending.

        values: field -> its value per layer
        """
        for row, at, pending in self._pending:
            self.instructions[row, at] = values[pending.field][pending.layer]

