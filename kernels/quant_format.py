"""What quantised weights and activations look like on a device: planes and their owners' names.

Owns the format numbers and the two records that kernels take. Knows nothing of files: `repack` builds the planes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # formats are also of interest where nobody waits for torch
    from torch import Tensor

ACTIVATION_BLOCK = 16  # elements of an activation row that share one scale
ACTIVATION_LEVELS = 32639  # 127 * 256 + 127: the largest integer whose two bytes are both signed ones
TINY_ACTIVATION = 1e-30  # least size of a block whose scale may be inverted; below, numbers count as less than they are


class QuantFormat(IntEnum):
    """Formats a kernel can read; the numbers are ggml's type ids (GGUF specification, table of tensor types)."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30
    MXFP4 = 39
    NVFP4 = 40

    @property
    def is_float(self) -> bool:
        """Whether it has plain numbers, no blocks."""
        return self in (QuantFormat.F32, QuantFormat.F16, QuantFormat.BF16)

    @property
    def chunk(self) -> int:
        """Elements behind one 16-byte load of the quants plane."""
        sizes = {QuantFormat.F32: 4, QuantFormat.F16: 8, QuantFormat.BF16: 8, QuantFormat.Q8_0: 16}
        return sizes.get(self, 32)


@dataclass(frozen=True, slots=True)
class QuantWeight:
    """One matrix (or a stack of expert matrices, rows end to end) as planes; rows contiguous in every plane.

    quants:  [num_rows, num_cols / 8] int32 nibbles, [num_rows, num_cols / 4] int32 bytes (Q8_0), or
             [num_rows, num_cols] plain numbers (F32, F16, BF16)
    high:    [num_rows, num_cols / 32] int32 fifth bits, [num_rows, num_cols / 16] int32 two bits (Q6_K), or a dummy
    scales:  [num_rows, num_cols / 32] per block of 32: f16 d (Q8_0, Q4_0, Q5_0, IQ4_NL), int32 f16 pair d | m
             (Q4_1, Q5_1), int16 byte pair scale | minimum (Q4_K, Q5_K), int16 pair of int8 scales (Q6_K), int8
             (IQ4_XS), uint8 exponent (MXFP4), int16 pair of E4M3 scales (NVFP4), or a dummy
    supers:  [num_rows, num_cols / 256]: int32 f16 pair d | dmin (Q4_K, Q5_K), f16 d (Q6_K, IQ4_XS);
             [num_rows] f32 factor of the whole row (NVFP4); or a dummy
    powers:  [num_rows] f32, of two, that take a row's largest scale, or about that, to the upper end of f16; or a dummy
    A dummy is the quants plane again: kernels need an address, not its content.
    """

    format: QuantFormat
    num_rows: int
    num_cols: int
    quants: Tensor
    high: Tensor
    scales: Tensor
    supers: Tensor
    powers: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes that reading the whole matrix touches."""
        planes = {plane.data_ptr(): plane for plane in (self.quants, self.high, self.scales, self.supers)}
        return sum(plane.numel() * plane.element_size() for plane in planes.values())


@dataclass(frozen=True, slots=True)
class HalfRows:
    """Up to eight rows as f16 numbers for the tensor cores: an element is the factor of its row times the number.

    values:   [8, num_cols] f16 in the order of half_rows.py, zeros past the last token
    factors:  [8] f32, without the norm's
    hints:    [8] f32, powers of two: what the elements of the next row are multiplied by to become numbers. Whoever
              makes the first row writes them, then every product that takes a row and its norm
    is_wide:  whether the order is that for matrices whose 16 bytes are 16 columns
    """

    values: Tensor
    factors: Tensor
    hints: Tensor
    is_wide: bool


@dataclass(frozen=True, slots=True)
class QuantActivation:
    """Rows of a layer's input as 16-bit integers with a scale per block of 16, the RMS factor left out.

    An integer is 256 * high + low, two signed bytes, each a factor of the integer dot products.

    The consumer multiplies by 1 / sqrt(mean(x^2) + eps), a scalar per row, from `square_sums`; so the kernel that
    finishes a row needs no pass over it.

    The first three hold a row's even blocks first, then its odd ones, so that neighbouring lanes, each at a block of 32
    of a weight's row, read neighbouring bytes.

    values:       [num_tokens, 2, num_cols] int8, high bytes, then low ones
    scales:       [num_tokens, num_cols / 16] f32
    sums:         [num_tokens, num_cols / 16] f32, scale * sum of the block's integers
    plain:        [num_tokens, num_cols] f32, what was quantised; None where nobody keeps it
    square_sums:  [num_tokens, num_cols / 16] f32, sum of x^2 per block before the norm's weight
    half:         the same for the tensor cores, None where nobody wants it; who makes the row, makes that too
    """

    values: Tensor
    scales: Tensor
    sums: Tensor
    plain: Tensor | None
    square_sums: Tensor
    half: HalfRows | None = None

    @property
    def num_tokens(self) -> int:
        return self.values.shape[0]

    @property
    def num_cols(self) -> int:
        return self.values.shape[2]
