"""How kernels are launched here: whether dp4a exists, and how many warps and rows suit a shape.

Pure functions of shapes and of the tensor's device; knows no kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quant_format import QuantFormat

THREE_OF_4_WARPS = 168  # registers a thread that leave room for three programs of 4 warps on a multiprocessor
FOUR_OF_4_WARPS = 128
TWO_OF_4_WARPS = 255
THREE_OF_8_WARPS = 80
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_dp4a() -> bool:
    """Whether kernels may use NVIDIA's integer dot product (absent in the interpreter and on AMD)."""
    return not INTERPRETED and torch.version.hip is None


def has_bulk_copies(x: Tensor) -> bool:
    """Whether the card copies and prefetches many bytes by one instruction (PTX: from sm_90 on)."""
    return x.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(x.device) >= (9, 0)


def launch_options(
    num_warps: int, pdl: bool, registers_of_8_warps: int | None, registers_of_4_warps: int = THREE_OF_4_WARPS
) -> dict[str, int | bool | None]:
    """Of a kernel that walks rows of a matrix; registers a thread at most, where it has 8 warps or fewer."""
    registers = registers_of_4_warps if num_warps <= 4 else registers_of_8_warps
    return {"num_warps": num_warps, "maxnreg": registers, **({"launch_pdl": True} if pdl else {})}


def has_large_shared_memory(x: Tensor) -> bool:
    """Whether a program may have 160 KB of shared memory, as on data centres' cards (CUDA guide, capabilities)."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device) in ((8, 0), (9, 0), (10, 0), (10, 3))


@dataclass(frozen=True, slots=True)
class RowTile:
    """How one program covers a matrix: warps * 32 / chunks * rows_per_thread rows, `chunks` 16-byte loads at a time,
    `depth` times over before the first is used."""

    num_warps: int
    rows_per_thread: int
    chunks: int
    depth: int

    @property
    def row_lanes(self) -> int:
        """W of the tile: rows side by side, before rows_per_thread."""
        return self.num_warps * 32 // self.chunks

    @property
    def rows(self) -> int:
        return self.row_lanes * self.rows_per_thread


def row_tile(
    quant_format: QuantFormat, num_cols: int, num_warps: int, rows_per_thread: int, depth: int = 4, chunks: int = 32
) -> RowTile:
    """A tile of at most `chunks` chunks that divide the row; more than 32 share a row among several warps."""
    num_chunks = num_cols // quant_format.chunk
    chunks = min(chunks, num_chunks & -num_chunks)
    return RowTile(num_warps, rows_per_thread, chunks, min(depth, num_chunks // chunks))


def block_tile(quant_format: QuantFormat, num_cols: int, num_warps: int, chunks: int, depth: int = 4) -> RowTile:
    """A tile of exactly 16 rows, one activation block of the next layer."""
    tile = row_tile(quant_format, num_cols, num_warps, 1, depth, chunks)
    while tile.row_lanes > 16:
        tile = RowTile(tile.num_warps // 2, 1, tile.chunks, tile.depth)
    return RowTile(tile.num_warps, 16 // tile.row_lanes, tile.chunks, tile.depth)
