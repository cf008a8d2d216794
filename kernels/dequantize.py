"""A quantised matrix as plain numbers: y[n, k] = W[n, k], for products that tensor cores do on f16 or bf16.

Bytes moved: the planes once, 2 bytes written per element, 16 bytes a store.
Reference:   kernels/reference/quant_weight.py (dequantize)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import has_dp4a, row_tile
from kernels.quant_format import QuantWeight
from kernels.quant_unpack import chunk_columns, has_minimum, load_tile, unpack_scales, unpack_words


@triton.jit
def chunk_values(word, scale, minimum, MINUS: tl.constexpr, T: tl.constexpr, W: tl.constexpr):
    """16 columns a chunk, [T, W, 1, 16] f32, of words [T, W, 1, 4] of four integers each."""
    scale = scale[:, :, :, None]
    minimum = minimum[:, :, :, None]
    v0 = scale * (((word << 24) >> 24).to(tl.float32) - MINUS) - minimum
    v1 = scale * (((word << 16) >> 24).to(tl.float32) - MINUS) - minimum
    v2 = scale * (((word << 8) >> 24).to(tl.float32) - MINUS) - minimum
    v3 = scale * ((word >> 24).to(tl.float32) - MINUS) - minimum
    values = tl.join(tl.join(v0, v2), tl.join(v1, v3))  # [.., 4, 2, 2]: element 4 word + 2 mid + last
    return tl.reshape(values, (T, W, 1, 16))


@triton.jit
def _dequantize_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, y_ptr, num_rows, FMT: tl.constexpr, COLS: tl.constexpr, T: tl.constexpr,
    W: tl.constexpr, NATIVE: tl.constexpr,
):
    chunk = tl.program_id(1) * T + tl.arange(0, T)
    row = tl.minimum(tl.program_id(0) * W + tl.arange(0, W), num_rows - 1)[None, :, None].to(tl.int64)
    tile = load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, row, chunk, COLS)
    low, high = unpack_words(FMT, tile, NATIVE)
    scale, scale_high, minimum = unpack_scales(FMT, tile)
    CHUNK: tl.constexpr = chunk_columns(FMT)
    MINUS: tl.constexpr = 32.0 if FMT == 14 else 0.0
    HAS_MINIMUM: tl.constexpr = has_minimum(FMT)
    if not HAS_MINIMUM:
        minimum = tl.zeros_like(scale)
    column = (chunk * CHUNK)[:, None, None, None] + tl.arange(0, 16)[None, None, None, :]
    target = y_ptr + (row * COLS)[:, :, :, None] + column
    tl.store(target, chunk_values(low, scale, minimum, MINUS, T, W).to(target.dtype.element_ty))
    if FMT != 8:
        high_values = chunk_values(high, scale_high, minimum, MINUS, T, W)
        tl.store(target + 16, high_values.to(target.dtype.element_ty))


def dequantize(weight: QuantWeight, out: Tensor) -> None:
    """Write the whole matrix.

    weight:  a format with blocks
    out:     [num_rows, num_cols] f16, bf16 or f32, contiguous
    """
    if weight.format.is_float:
        raise ValueError(f"a matrix in {weight.format.name} needs no dequantisation")
    tile = row_tile(weight.format, weight.num_cols, 4, 1)
    num_chunks = weight.num_cols // weight.format.chunk
    _dequantize_kernel[(triton.cdiv(weight.num_rows, tile.row_lanes), num_chunks // tile.chunks)](
        weight.quants, weight.high, weight.scales, weight.supers, out, weight.num_rows, FMT=int(weight.format),
        COLS=weight.num_cols, T=tile.chunks, W=tile.row_lanes, NATIVE=has_dp4a(), num_warps=4,
    )
