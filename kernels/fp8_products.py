"""x W^T of e4m3 numbers with scales of blocks, for prompts: tensor cores multiply twice as many of them as of f16.

A block's largest magnitude becomes 448, e4m3's own. x has a scale for 128 columns of a row, W one for 128 columns of
128 rows; the sum over a block is scaled as f32 (DeepSeek-V3's recipe, cuBLASLt's "1x128" and "128x128").
Bytes moved: to make operands, what they are made of once, a byte an element; then as the library does.
Reference:   kernels/reference/fp8_products.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from kernels.dequantize import chunk_values
from kernels.launch import has_dp4a
from kernels.prompt_rows import gated_halves
from kernels.quant_format import QuantWeight
from kernels.quant_unpack import chunk_columns, has_minimum, load_tile, unpack_scales, unpack_words

BLOCK = 128
LARGEST = 448.0  # of e4m3
ROWS = 32        # of x in a program
SCALES_ALIGNMENT = 4  # the library reads scales of so many rows (of x) or blocks (of W) at once


@triton.jit
def _to_e4m3(x, NATIVE: tl.constexpr):
    """Nearest e4m3 number of what is within its range, ties to even."""
    if not NATIVE:  # the interpreter's conversion loses carries: leave it nothing to round
        exponent = tl.maximum((x.to(tl.int32, bitcast=True) >> 23) & 0xFF, 121)
        step = ((exponent - 3) << 23).to(tl.float32, bitcast=True)
        x = (x / step + 12582912.0 - 12582912.0) * step
    return x.to(tl.float8e4nv)


@triton.jit
def _scale_of(largest):
    """(scale, its inverse) of a block by its largest magnitude."""
    return largest / 448.0, 448.0 / tl.maximum(largest, 1e-30)


@triton.jit
def _plain_kernel(
    x_ptr, y_ptr, scales_ptr, num_rows, stride_row, stride_block, COLS: tl.constexpr, ROWS: tl.constexpr,
    SQUARE: tl.constexpr, NATIVE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * 128 + tl.arange(0, 128)
    place = row.to(tl.int64)[:, None] * COLS + column[None, :]
    inside = (row < num_rows)[:, None] & (column < COLS)[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=1)
    scales_ptr += tl.program_id(1) * stride_block
    if SQUARE:
        scale, inverse = _scale_of(tl.max(largest, axis=0))
        tl.store(scales_ptr + tl.program_id(0) * stride_row, scale)
        y = x * inverse
    else:
        scale, inverse = _scale_of(largest)
        tl.store(scales_ptr + row * stride_row, scale, mask=row < num_rows)
        y = x * inverse[:, None]
    tl.store(y_ptr + place, _to_e4m3(y, NATIVE), mask=inside)


@triton.jit
def _quantized_kernel(
    q_ptr, h_ptr, s_ptr, d_ptr, y_ptr, scales_ptr, num_rows, stride_row, stride_block, FMT: tl.constexpr,
    COLS: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr, NATIVE: tl.constexpr,
):
    """128 columns of ROWS rows, as they come out of the planes."""
    CHUNK: tl.constexpr = chunk_columns(FMT)
    chunk = tl.minimum(tl.program_id(1) * T + tl.arange(0, T), COLS // CHUNK - 1)
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), num_rows - 1)[None, :, None].to(tl.int64)
    tile = load_tile(FMT, q_ptr, h_ptr, s_ptr, d_ptr, row, chunk, COLS)
    low, high = unpack_words(FMT, tile, NATIVE)
    scale, scale_high, minimum = unpack_scales(FMT, tile)
    MINUS: tl.constexpr = 32.0 if FMT == 14 else 0.0
    HAS_MINIMUM: tl.constexpr = has_minimum(FMT)
    if not HAS_MINIMUM:
        minimum = tl.zeros_like(scale)
    first = chunk_values(low, scale, minimum, MINUS, T, ROWS)
    largest = tl.max(tl.abs(first))
    if FMT != 8:
        second = chunk_values(high, scale_high, minimum, MINUS, T, ROWS)
        largest = tl.maximum(largest, tl.max(tl.abs(second)))
    scale, inverse = _scale_of(largest)
    tl.store(scales_ptr + tl.program_id(0) * stride_row + tl.program_id(1) * stride_block, scale)
    column = (chunk * CHUNK)[:, None, None, None] + tl.arange(0, 16)[None, None, None, :]
    target = y_ptr + (row * COLS)[:, :, :, None] + column
    tl.store(target, _to_e4m3(first * inverse, NATIVE))
    if FMT != 8:
        tl.store(target + 16, _to_e4m3(second * inverse, NATIVE))


@triton.jit(do_not_specialize=["stride_row"])
def _gated_kernel(
    x_ptr, stride_x, row_gate_ptr, stride_row, y_ptr, scales_ptr, stride_block, factor, COLS: tl.constexpr,
    GELU: tl.constexpr, ROW_GATE: tl.constexpr, BLOCKS: tl.constexpr, NATIVE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCKS * 128 + tl.arange(0, BLOCKS * 128)
    y = gated_halves(x_ptr, stride_x, row_gate_ptr, stride_row, factor, row, column, COLS, GELU, ROW_GATE)
    blocks = tl.reshape(y, (BLOCKS, 128))
    scale, inverse = _scale_of(tl.max(tl.abs(blocks), axis=1))
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    tl.store(scales_ptr + block * stride_block + row, scale, mask=block * 128 < COLS)
    values = tl.reshape(blocks * inverse[:, None], (BLOCKS * 128,))
    tl.store(y_ptr + row * COLS + column, _to_e4m3(values, NATIVE), mask=column < COLS)


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """values: [num_rows, num_cols] e4m3, contiguous, a multiple of 4 rows; scales: [num_rows, blocks] f32, columns
    contiguous; num_tokens: rows that are not there to fill up."""

    values: Tensor
    scales: Tensor
    num_tokens: int

    @classmethod
    def empty(cls, num_tokens: int, num_cols: int, device: torch.device) -> Fp8Rows:
        """Rows that fill up are zeros."""
        padded = -(-num_tokens // SCALES_ALIGNMENT) * SCALES_ALIGNMENT
        new = torch.empty if padded == num_tokens else torch.zeros
        values = new(padded, num_cols, dtype=torch.float8_e4m3fn, device=device)
        scales = new(triton.cdiv(num_cols, BLOCK), padded, device=device)
        return cls(values, scales.t(), num_tokens)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """values: [num_rows, num_cols] e4m3, contiguous; scales: [blocks of rows, blocks of columns] f32, contiguous, the
    latter a multiple of 4."""

    values: Tensor
    scales: Tensor


def fits(weights: Sequence[QuantWeight]) -> bool:
    """Whether matrices of one width, rows end to end, can be multiplied so: blocks of rows cross none of them."""
    starts_blocks = all(weight.num_rows % BLOCK == 0 for weight in weights[:-1])
    return starts_blocks and weights[0].num_cols % BLOCK == 0 and weights[-1].num_rows % 16 == 0


def quantize_rows(x: Tensor) -> Fp8Rows:
    """x: [num_tokens, num_cols] f16 or f32, contiguous; rows are filled up with zeros to a multiple of 4."""
    num_tokens, num_cols = x.shape
    rows = Fp8Rows.empty(num_tokens, num_cols, x.device)
    _plain_kernel[(triton.cdiv(num_tokens, ROWS), rows.scales.shape[1])](
        x, rows.values, rows.scales, num_tokens, 1, rows.scales.stride(1), COLS=num_cols, ROWS=ROWS, SQUARE=False,
        NATIVE=has_dp4a(), num_warps=4,
    )
    return rows


def gate_up_rows(x: Tensor, row_gate: Tensor | None, is_gelu: bool, factor: float = 1.0) -> Fp8Rows:
    """prompt_rows.gate_up, its result as operand.

    x:         [num_tokens, 2 * cols] f32 or bf16: gate | up, rows at any stride
    row_gate:  [num_tokens] f32 at any stride, or None
    """
    num_tokens, cols = x.shape[0], x.shape[1] // 2
    rows = Fp8Rows.empty(num_tokens, cols, x.device)
    blocks = min(8, triton.next_power_of_2(rows.scales.shape[1]))
    _gated_kernel[(num_tokens, triton.cdiv(cols, BLOCK * blocks))](
        x, x.stride(0), x if row_gate is None else row_gate, 0 if row_gate is None else row_gate.stride(0),
        rows.values, rows.scales, rows.scales.stride(1), factor, COLS=cols, GELU=is_gelu,
        ROW_GATE=row_gate is not None, BLOCKS=blocks, NATIVE=has_dp4a(), num_warps=4,
    )
    return rows


def quantize_weights(weights: Sequence[QuantWeight]) -> Fp8Matrix:
    """Matrices that `fits` allows, rows end to end."""
    num_cols, like = weights[0].num_cols, weights[0].quants
    num_rows = [weight.num_rows for weight in weights]
    blocks = triton.cdiv(num_cols, BLOCK)
    aligned = -(-blocks // SCALES_ALIGNMENT) * SCALES_ALIGNMENT
    values = like.new_empty(sum(num_rows), num_cols, dtype=torch.float8_e4m3fn)
    scales = like.new_zeros(triton.cdiv(sum(num_rows), BLOCK), aligned, dtype=torch.float32)
    places = torch.split(scales, [triton.cdiv(rows, BLOCK) for rows in num_rows])
    for weight, target, place in zip(weights, torch.split(values, num_rows), places):
        _quantize_weight(weight, target, place, (place.shape[0], blocks))
    return Fp8Matrix(values, scales)


def _quantize_weight(weight: QuantWeight, values: Tensor, scales: Tensor, grid: tuple[int, int]) -> None:
    if weight.format.is_float:
        _plain_kernel[grid](
            weight.quants, values, scales, weight.num_rows, scales.stride(0), 1, COLS=weight.num_cols, ROWS=BLOCK,
            SQUARE=True, NATIVE=has_dp4a(), num_warps=8,
        )
        return
    _quantized_kernel[grid](
        weight.quants, weight.high, weight.scales, weight.supers, values, scales, weight.num_rows, scales.stride(0), 1,
        FMT=int(weight.format), COLS=weight.num_cols, T=BLOCK // weight.format.chunk, ROWS=BLOCK, NATIVE=has_dp4a(),
        num_warps=8,
    )


def fp8_products(rows: Fp8Rows, weights: Sequence[QuantWeight], dtype: torch.dtype = torch.float32) -> Tensor:
    """[num_tokens, rows of all the matrices] of `dtype`, on a card of compute capability 9.0; weights that `fits`."""
    matrix = quantize_weights(weights)
    product = scaled_mm(
        rows.values, matrix.values.t(), rows.scales, ScalingType.BlockWise1x128, matrix.scales.t(),
        ScalingType.BlockWise128x128, output_dtype=dtype,
    )
    return product[: rows.num_tokens]
