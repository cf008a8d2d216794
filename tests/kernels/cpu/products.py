"""Runs one product through a program, as a model does; shared by the tests of this folder, and a script of its own."""

from __future__ import annotations

import sys

import numpy as np
import torch

from kernels.cpu import program as words
from kernels.cpu.pack import pack, pack_dense
from kernels.cpu.packed_layout import LAYOUTS
from kernels.cpu.rows import norm_kernel
from kernels.quant_format import QuantFormat
from sparkinfer.model.cpu.memory import aligned_bytes, aligned_copy
from sparkinfer.model.cpu.program import Buffer, ProgramWriter
from sparkinfer.model.cpu.thread_team import team_of
from sparkinfer.model.cpu.weights import FLOAT_KINDS, PackedMatrix
from tests.kernels.random_weights import random_blocks

MAX_ROWS = 32


def packed(kind: str, num_out: int, num_columns: int, seed: int = 0) -> PackedMatrix:
    if kind in FLOAT_KINDS.values():
        values = dense_values(kind, num_out, num_columns, seed)
        rows = values.view(torch.uint16).numpy() if kind == "bf16" else values.numpy()
        return PackedMatrix(kind, num_out, num_columns, aligned_copy(pack_dense(rows)))
    raw = random_blocks(num_out, num_columns, QuantFormat[kind], seed=seed).numpy()
    return PackedMatrix(kind, num_out, num_columns, aligned_copy(pack(raw, QuantFormat[kind])))


def dense_values(kind: str, num_out: int, num_columns: int, seed: int = 0) -> torch.Tensor:
    values = torch.randn(num_out, num_columns, generator=torch.Generator().manual_seed(seed)) * 0.05
    return values.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind])


def product(
    matrix: PackedMatrix, x: torch.Tensor, num_threads: int = 1, init: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """x W^T + init or bias; x: [num_rows, num_columns] f32 of unit root mean square in every row."""
    num_rows, num_columns = x.shape
    writer = ProgramWriter(MAX_ROWS)
    source = Buffer(writer.keep(x), 4 * num_columns)
    activations = writer.activations("x", num_columns, [matrix])
    writer.write(
        norm_kernel, words.NUM_ROWS, 1, source, 0, activations.floats, activations.records, num_columns, 0.0, 0, 0
    )
    out = aligned_bytes(MAX_ROWS * matrix.num_out * 4).view(np.float32).reshape(MAX_ROWS, matrix.num_out)
    if init is not None:
        out[:num_rows] = init.numpy()
    target = Buffer(out.ctypes.data, 4 * matrix.num_out)
    writer.matmul([matrix], activations, target, adds=init is not None, bias=bias)
    step = aligned_bytes(8 * words.STEP_WORDS).view(np.int64)
    scratch = aligned_bytes(4096 * num_threads)
    step[[words.ONE, words.NUM_ROWS, words.SCRATCH, words.SCRATCH_BYTES]] = 1, num_rows, scratch.ctypes.data, 4096
    program = writer.finish()
    team_of(num_threads).run(program, program.whole, step.ctypes.data)
    return torch.from_numpy(out[:num_rows].copy())


def unit_rows(num_rows: int, num_columns: int, seed: int = 1) -> torch.Tensor:
    x = torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed))
    return x / x.square().mean(-1, keepdim=True).sqrt()


def example(kind: str) -> torch.Tensor:
    columns = 512 if LAYOUTS[QuantFormat[kind]].super_bytes else 96
    return product(packed(kind, 37, columns), unit_rows(5, columns))


if __name__ == "__main__":
    torch.save({kind: example(kind) for kind in sys.argv[2:]}, sys.argv[1])
