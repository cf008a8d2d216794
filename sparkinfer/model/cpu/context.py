"""What the writers of a model's parts share: program, checkpoint, names of tensors. Knows no part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.cpu import program as words
from kernels.cpu.rows import activate_kernel, norm_kernel
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.model.cpu.program import Activations, Buffer, ProgramWriter
from sparkinfer.model.cpu.weights import PackedMatrix, WeightReader
from sparkinfer.model.module import Module
from sparkinfer.model.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class Writing:
    """A program that is being written.

    names: id of a module with one matrix, or a stack of them -> the tensor's name
    x:     the residual stream, rows of hidden_size floats
    """

    program: ProgramWriter
    hparams: HParams
    reader: WeightReader
    names: Mapping[int, str]
    x: Buffer

    def matrices(self, *modules: Module) -> list[PackedMatrix]:
        """The matrices of modules with the same input, side by side."""
        return self.reader.matrices([self.names[id(module)] for module in modules])

    def normed(
        self, norm: RMSNorm, matrices: Sequence[PackedMatrix], also_floats: bool = False, rows: int = 0
    ) -> Activations:
        """The residual stream through a norm, as `matrices` want it; rows: the word of a list of rows, 0 for all."""
        size, program = self.hparams.hidden_size, self.program
        found = program.activations("normed", size, matrices)
        if also_floats and found.floats is None:
            found = Activations(program.floats("normed floats", size), found.records)
        count = words.NUM_LOGITS if rows else words.NUM_ROWS
        program.write(
            norm_kernel, count, 1, self.x, program.keep(norm.weight), found.floats, found.records, size,
            float(norm.eps), rows, 0,
        )
        return found

    def add_normed(self, norm: RMSNorm, source: Buffer) -> None:
        """Add rows of hidden_size floats to the residual stream, through a norm."""
        program = self.program
        program.write(
            norm_kernel, words.NUM_ROWS, 1, source, program.keep(norm.weight), self.x, None, self.hparams.hidden_size,
            float(norm.eps), 0, 1,
        )

    def activated(
        self, gate_up: Buffer, size: int, kind: int, matrices: Sequence[PackedMatrix], rows_per_row: int = 1
    ) -> Activations:
        """act(gate) * up of rows [gate | up], as `matrices` want it; count: rows, or pairs of a row and an expert."""
        program = self.program
        found = program.activations("activated", size, matrices, rows_per_row)
        count = words.NUM_PAIRS if rows_per_row > 1 else words.NUM_ROWS
        program.write(
            activate_kernel, count, size // 32, gate_up, found.records, found.floats, size, kind, grain=8,
        )
        return found
