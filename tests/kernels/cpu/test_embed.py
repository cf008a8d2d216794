"""Rows of packed matrices as floats: what dequantising gives, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cpu import program as words
from kernels.cpu.dot import dot_instruction
from kernels.cpu.embed import embed_kernel
from kernels.cpu.packed_layout import LAYOUTS
from kernels.quant_format import QuantFormat
from sparkinfer.checkpoint.ggml_type import GGMLType
from sparkinfer.checkpoint.quants import dequantize
from sparkinfer.model.cpu.memory import aligned_bytes
from sparkinfer.model.cpu.program import ProgramWriter
from sparkinfer.model.cpu.thread_team import team_of
from tests.kernels.cpu.products import dense_values, packed
from tests.kernels.random_weights import random_blocks

pytestmark = pytest.mark.skipif(dot_instruction() is None, reason="this CPU has no instruction that the kernels need")
NUM_OUT, TOKENS = 37, [0, 36, 15, 16, 5, 5]


def embedded(kind: str, num_columns: int, factor: float) -> np.ndarray:
    matrix, writer = packed(kind, NUM_OUT, num_columns), ProgramWriter(len(TOKENS))
    out, tokens = writer.floats("out", num_columns), np.array(TOKENS, np.int64)
    writer.write(
        embed_kernel(kind), words.NUM_ROWS, 1, matrix.panels.ctypes.data, matrix.panels.shape[1], factor, out,
        num_columns,
    )
    step = aligned_bytes(8 * words.STEP_WORDS).view(np.int64)
    step[[words.ONE, words.NUM_ROWS, words.TOKENS]] = 1, len(TOKENS), tokens.ctypes.data
    program = writer.finish()
    team_of(1).run(program, program.whole, step.ctypes.data)
    kept = next(iter(writer._buffers.values()))
    memory = next(array for array in writer._kept if array.ctypes.data == kept.address)
    return memory.view(np.float32).reshape(len(TOKENS), -1)[:, :num_columns]


@pytest.mark.parametrize("quant_format", LAYOUTS, ids=lambda quant_format: quant_format.name)
def test_quantised_rows(quant_format: QuantFormat) -> None:
    columns = 512 if LAYOUTS[quant_format].super_bytes else 96
    raw = random_blocks(NUM_OUT, columns, quant_format, seed=0).numpy()
    expected = dequantize(raw[TOKENS], GGMLType[quant_format.name]) * np.float32(1.5)
    assert np.array_equal(embedded(quant_format.name, columns, 1.5), expected)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_rows_of_floats(kind: str) -> None:
    expected = dense_values(kind, NUM_OUT, 96)[TOKENS].to(torch.float32) * 3.0
    assert np.array_equal(embedded(kind, 96, 3.0), expected.numpy())
