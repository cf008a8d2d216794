"""How kernels are launched here: whether dp4a exists, and how many warps and rows suit a shape.

Pure functions of shapes and of the tensor's device; knows no kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from kernels.quant_format import QuantFormat

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_dp4a() -> bool:
    """Whether kernels may use NVIDIA's integer dot product (absent in the interpreter and on AMD)."""
    return not INTERPRETED and torch.version.hip is None


@dataclass(frozen=True, slots=True)
class RowTile:
    """How one program covers a matrix: warps * (32 / chunks) * rows_per_thread rows, `chunks` 16-byte loads at a time."""

    num_warps: int
    rows_per_thread: int
    chunks: int
    unroll: int

    @property
    def lanes_of_rows(self) -> int:
        """W of the tile: rows side by side, before rows_per_thread."""
        return self.num_warps * (32 // self.chunks)

    @property
    def rows(self) -> int:
        return self.lanes_of_rows * self.rows_per_thread


def row_tile(quant_format: QuantFormat, num_cols: int, num_warps: int, rows_per_thread: int, unroll: int = 4) -> RowTile:
    """A tile whose chunks divide the row, at most one warp wide."""
    num_chunks = num_cols // quant_format.chunk
    chunks = min(32, num_chunks & -num_chunks)
    return RowTile(num_warps, rows_per_thread, chunks, min(unroll, num_chunks // chunks))
