"""Products of rows of activations by a matrix: quantised panels times records, or floats times floats.

A kernel is compiled per format, on first use.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.dense_tile import emit_dense_tile
from kernels.cpu.packed_layout import LAYOUTS
from kernels.cpu.program import LOGITS, SCRATCH, SCRATCH_BYTES, jit_kernels
from kernels.cpu.quant_tile import QuantTile
from kernels.cpu.simd import Int, Void, load_f32, load_i64, store_f32
from kernels.cpu.values import Intrinsic
from kernels.quant_format import QuantFormat

DENSE = ("f32", "f16", "bf16")
WEIGHTS = ""  # in the function of a kernel: its format


def _emit_tile(b: Any, weights: str, num_rows: int, *arguments: Any) -> None:
    if weights in DENSE:
        emit_dense_tile(b, weights, num_rows, *arguments)
    else:
        QuantTile(b, LAYOUTS[QuantFormat[weights]], num_rows).emit(*arguments)


# 16 columns of rows, as the generator of a format writes them: tile(format, number of rows, ...), both constants
tile = Intrinsic(Void, (None, None, *[Int] * 8), _emit_tile)


# panels, panel_bytes, panels of one matrix, x (records or f32 rows), x_bytes, out (0: the logits), out_bytes, num_out,
# init, init_bytes, init_panel_bytes, num_columns, word of the step with the number of rows, starts (0: one matrix; else
# [num_matrices + 1], the first row of each matrix of a stack), active (the matrices with rows, then -1)
@jit_kernels(lambda weights: {"WEIGHTS": weights})
def matmul_kernel(args, step, begin, end, thread):
    """A panel: out[:, 16 of its columns] = init + x W^T. An init that is out itself adds; a single row is a bias.

    Kinds: a QuantFormat's name, "f32", "f16" or "bf16".
    """
    panels, panel_bytes, num_panels = load_i64(args), load_i64(args + 8), load_i64(args + 16)
    x_base, x_bytes, out_base, out_bytes = (
        load_i64(args + 24), load_i64(args + 32), load_i64(args + 40), load_i64(args + 48)
    )
    num_out, init_base, init_bytes = load_i64(args + 56), load_i64(args + 64), load_i64(args + 72)
    init_step, columns, starts = load_i64(args + 80), load_i64(args + 88), load_i64(args + 104)
    if out_base == 0:
        out_base = load_i64(step + 8 * LOGITS)
    spare = load_i64(step + 8 * SCRATCH) + thread * load_i64(step + 8 * SCRATCH_BYTES)
    for unit in range(begin, end):
        panel, w = unit % num_panels, panels + unit * panel_bytes
        row, last = 0, load_i64(step + 8 * load_i64(args + 96))
        if starts != 0:
            matrix = load_i64(load_i64(args + 112) + 8 * (unit // num_panels))
            if matrix < 0:
                break
            row, last = load_i64(starts + 8 * matrix), load_i64(starts + 8 * matrix + 8)
            w = panels + (matrix * num_panels + panel) * panel_bytes
        width = min(num_out - 16 * panel, 16)
        while row < last:
            rows = 8 if last - row >= 8 else (4 if last - row >= 4 else (2 if last - row >= 2 else 1))
            x, init = x_base + row * x_bytes, init_base + row * init_bytes + panel * init_step
            place = out_base + row * out_bytes + 64 * panel
            out, stride = place if width == 16 else spare, out_bytes if width == 16 else 64
            if rows == 8:
                tile(WEIGHTS, 8, w, x, x_bytes, out, stride, init, init_bytes, columns)
            elif rows == 4:
                tile(WEIGHTS, 4, w, x, x_bytes, out, stride, init, init_bytes, columns)
            elif rows == 2:
                tile(WEIGHTS, 2, w, x, x_bytes, out, stride, init, init_bytes, columns)
            else:
                tile(WEIGHTS, 1, w, x, x_bytes, out, stride, init, init_bytes, columns)
            if width < 16:
                for r in range(rows):
                    for i in range(width):
                        store_f32(place + r * out_bytes + 4 * i, load_f32(spare + 64 * r + 4 * i))
            row += rows
