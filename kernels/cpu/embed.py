"""Rows of a packed matrix as floats: the embedding of a model whose head is the same matrix. Knows formats; no tokens'
meaning.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from llvmlite import ir

from kernels.cpu.dense_tile import ELEMENT_BYTES, DenseType, element
from kernels.cpu.matmul import DENSE
from kernels.cpu.packed_layout import BLOCK, LAYOUTS, PANEL_ROWS
from kernels.cpu.program import TOKENS, jit_kernels
from kernels.cpu.quant_tile import QuantTile
from kernels.cpu.simd import F32, I64, Float, Int, Void, address, load_f64, load_i64, splat
from kernels.cpu.values import Intrinsic
from kernels.quant_format import QuantFormat

WEIGHTS = ""  # in the function of a kernel: its format


def _emit_block(b: Any, weights: str, panel: Any, index: Any, lane: Any, factor: Any, out: Any) -> None:
    """out[0..31] = factor * the block `index` of a panel's row `lane`."""
    if weights not in DENSE:
        halves = QuantTile(b, LAYOUTS[QuantFormat[weights]], 1).row(panel, index, lane)
        for i, half in enumerate(halves):
            b.store(b.fmul(half, splat(b, factor)), address(b, out, 64 * i, half.type), align=4)
        return
    kind = cast(DenseType, weights)
    size = ELEMENT_BYTES[kind]
    first = b.add(b.mul(index, ir.Constant(I64, BLOCK * PANEL_ROWS * size)), b.mul(lane, ir.Constant(I64, size)))
    for i in range(BLOCK):
        value = element(b, kind, b.add(panel, first), i * PANEL_ROWS * size)
        b.store(b.fmul(value, factor), address(b, out, 4 * i, F32), align=4)


unpack = Intrinsic(Void, (None, *[Int] * 3, Float, Int), _emit_block)


# panels, panel_bytes, factor (f64), out, out_bytes, num_columns
@jit_kernels(lambda weights: {"WEIGHTS": weights})
def embed_kernel(args, step, begin, end, thread):
    """A row: out = factor * the matrix's row that the step's token names; what dequantising gives, to the last bit.

    Kinds: as matmul_kernel's.
    """
    panels, panel_bytes, factor = load_i64(args), load_i64(args + 8), np.float32(load_f64(args + 16))
    out, out_bytes, blocks = load_i64(args + 24), load_i64(args + 32), load_i64(args + 40) // BLOCK
    for row in range(begin, end):
        token = load_i64(load_i64(step + 8 * TOKENS) + 8 * row)
        panel = panels + token // PANEL_ROWS * panel_bytes
        for block in range(blocks):
            unpack(WEIGHTS, panel, block, token % PANEL_ROWS, factor, out + row * out_bytes + 4 * BLOCK * block)
