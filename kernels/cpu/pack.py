"""Rows of ggml blocks -> panels, as packed_layout.py draws them. Knows formats; nothing of files or tensor names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.packed_layout import LAYOUTS, PANEL_ROWS, PackedLayout
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.repack import repack

Bytes = npt.NDArray[np.uint8]
PIECE_ELEMENTS = 4 << 20  # weights packed at once: the temporary arrays stay in the cache's reach


def pack(raw: Bytes, quant_format: QuantFormat) -> Bytes:
    """[num_panels, panel_bytes], rows behind the last filled up with zeros.

    raw: [num_rows, row_bytes], whole blocks
    Raises ValueError if a factor is not finite.
    """
    layout = LAYOUTS[quant_format]
    row_bytes = raw.shape[1]
    rows = max(PIECE_ELEMENTS // max(2 * row_bytes, 1) // PANEL_ROWS, 1) * PANEL_ROWS
    return np.concatenate([_pack_piece(raw[i : i + rows], quant_format, layout) for i in range(0, len(raw), rows)])


def _pack_piece(raw: Bytes, quant_format: QuantFormat, layout: PackedLayout) -> Bytes:
    missing = -len(raw) % PANEL_ROWS
    rows = np.zeros((len(raw) + missing, raw.shape[1]), np.uint8)
    rows[: len(raw)] = raw
    planes = repack(torch.from_numpy(rows), quant_format)
    factors = planes.supers if layout.super_bytes else planes.scales
    if layout.scale != "e8m0" and not np.isfinite(factors.numpy().view(np.float16)).all():
        raise ValueError("holds values that are not finite: the file is damaged")
    num_panels, num_steps = len(rows) // PANEL_ROWS, planes.num_cols // layout.columns
    blocks = np.concatenate(list(_block_fields(planes, layout)), axis=-1)
    blocks = blocks.reshape(num_panels, num_steps, -1)
    if layout.super_bytes:
        width = layout.super_bytes // PANEL_ROWS // 2
        supers = _interleaved(planes.supers, num_steps, 2, width)
        blocks = np.concatenate((supers.reshape(num_panels, num_steps, -1), blocks), axis=-1)
    return blocks.reshape(num_panels, -1)


def _block_fields(planes: QuantWeight, layout: PackedLayout) -> list[Bytes]:
    """Each [num_panels, num_blocks, bytes]."""
    num_blocks = planes.num_cols // 32
    quants = planes.quants if layout.bits != 8 else planes.quants ^ np.int32(-0x7F7F7F80)  # signed to unsigned bytes
    fields = [_interleaved(quants, num_blocks, 4, 8 if layout.bits == 8 else 4)]
    if layout.bits in (5, 6):
        fields.append(_interleaved(planes.high, num_blocks, 4, layout.bits - 4))
    element, count = {"f16": (2, 1), "f16_min": (2, 2), "u8_min": (1, 2), "i8": (1, 1), "i8_halves": (1, 2),
                      "e8m0": (1, 1)}[layout.scale]
    fields.append(_interleaved(planes.scales, num_blocks, element, count))
    return fields


def _interleaved(plane: torch.Tensor, num_steps: int, element_bytes: int, count: int) -> Bytes:
    """[num_rows, num_steps * count elements] -> [num_panels, num_steps, count * 16 rows * element_bytes]."""
    elements = plane.numpy().view(np.uint8).reshape(-1, PANEL_ROWS, num_steps, count, element_bytes)
    swapped = elements.view(f"u{element_bytes}")[..., 0].transpose(0, 2, 3, 1)
    return np.ascontiguousarray(swapped).view(np.uint8).reshape(*swapped.shape[:2], -1)


def pack_dense(rows: npt.NDArray[np.generic]) -> Bytes:
    """Panels of a matrix of f32, f16 or bf16 (as uint16): [num_panels, num_columns * 16 * element bytes]."""
    num_rows, num_columns = rows.shape
    padded = np.zeros((num_rows + -num_rows % PANEL_ROWS, num_columns), rows.dtype)
    padded[:num_rows] = rows
    panels = np.ascontiguousarray(padded.reshape(-1, PANEL_ROWS, num_columns).transpose(0, 2, 1))
    return panels.reshape(len(panels), -1).view(np.uint8)
