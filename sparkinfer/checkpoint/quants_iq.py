"""Decoders of the codebook types IQ1, IQ2 and IQ3: groups of 4 or 8 elements are points of a fixed lattice.

Each takes blocks [num_blocks, type_size] uint8 and returns [num_blocks, 256] float32, bit-identical to ggml's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkinfer.checkpoint import iq_grids
from sparkinfer.checkpoint.quant_fields import Bytes, Floats, f16, planes, scaled, u16, u32

_THREE_LEVELS = (0x08, 0x19, 0x2B)
_IQ2_XXS = iq_grids.grid(iq_grids.IQ2_XXS_POINTS, _THREE_LEVELS, 8)
_IQ2_XS = iq_grids.grid(iq_grids.IQ2_XS_POINTS, _THREE_LEVELS, 8)
_IQ2_S = iq_grids.grid(iq_grids.IQ2_S_POINTS, _THREE_LEVELS, 8)
_IQ3_XXS = iq_grids.grid(iq_grids.IQ3_XXS_POINTS, (0x04, 0x0C, 0x14, 0x1C, 0x24, 0x2C, 0x34, 0x3E), 4)
_IQ3_S = iq_grids.grid(iq_grids.IQ3_S_POINTS, (1, 3, 5, 7, 9, 11, 13, 15), 4)
_IQ1_S = iq_grids.grid(iq_grids.IQ1_S_POINTS, (-1, 0, 1), 8)

# Seven sign bits and the eighth that makes their number even.
_EVEN_SIGNS = np.array([bits | (bits.bit_count() & 1) << 7 for bits in range(128)], np.uint8)
_IQ1_DELTA = np.float32(0.125)


def _fields(words: NDArray[Any], width: int, count: int) -> NDArray[Any]:
    """The lowest `count` fields of `width` bits of each word, lowest first: [num_blocks, num_words * count]."""
    shifts = np.arange(0, width * count, width, dtype=words.dtype)
    fields: NDArray[Any] = words[:, :, None] >> shifts & words.dtype.type((1 << width) - 1)
    return fields.reshape(len(words), -1)


def _signed(points: NDArray[np.int8], sign_bits: Bytes) -> NDArray[np.int8]:
    """points: [num_blocks, 256] in any grouping; sign_bits: [num_blocks, 32], set bits negate."""
    negative = _fields(sign_bits, 1, 8).astype(bool)
    flat = points.reshape(len(sign_bits), -1)
    return np.where(negative, -flat, flat)


def iq2_xxs(blocks: Bytes) -> Floats:
    """d f16 | 8 x (4 index bytes, u32 of 4 x 7 sign bits and a 4-bit scale): d * (scale + 1/2) / 4 * point."""
    indices = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    words = u32(blocks, 2, 16)[:, 1::2]
    scales = f16(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.25)
    return scaled(scales, _signed(_IQ2_XXS[indices], _EVEN_SIGNS[_fields(words, 7, 4)]))


def iq2_xs(blocks: Bytes) -> Floats:
    """d f16 | 32 words of a 9-bit index and 7 sign bits | 16 scale nibbles: d * (scale + 1/2) / 4 * point."""
    words = u16(blocks, 2, 32)
    scales = f16(blocks, 0) * (np.float32(0.5) + planes(blocks[:, 66:], 4, 1)) * np.float32(0.25)
    return scaled(scales, _signed(_IQ2_XS[words & np.uint16(511)], _EVEN_SIGNS[words >> 9]))


def iq2_s(blocks: Bytes) -> Floats:
    """d f16 | 32 index bytes | 32 sign bytes | 8 bytes of upper index bits | 16 scale nibbles, scaled as IQ2_XS."""
    indices = blocks[:, 2:34] | _fields(blocks[:, 66:74], 2, 4).astype(np.uint16) << 8
    scales = f16(blocks, 0) * (np.float32(0.5) + planes(blocks[:, 74:], 4, 1)) * np.float32(0.25)
    return scaled(scales, _signed(_IQ2_S[indices], blocks[:, 34:66]))


def iq3_xxs(blocks: Bytes) -> Floats:
    """d f16 | 64 index bytes | 8 u32 of 4 x 7 sign bits and a 4-bit scale: d * (scale + 1/2) / 2 * point."""
    words = u32(blocks, 66, 8)
    scales = f16(blocks, 0) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    return scaled(scales, _signed(_IQ3_XXS[blocks[:, 2:66]], _EVEN_SIGNS[_fields(words, 7, 4)]))


def iq3_s(blocks: Bytes) -> Floats:
    """d f16 | 64 index bytes | 8 bytes of ninth bits | 32 sign bytes | 8 scale nibbles: d * (2*scale + 1) * point."""
    indices = blocks[:, 2:66] | _fields(blocks[:, 66:74], 1, 8).astype(np.uint16) << 8
    scales = f16(blocks, 0) * (2 * planes(blocks[:, 106:], 4, 1) + np.uint8(1))
    return scaled(scales, _signed(_IQ3_S[indices], blocks[:, 74:106]))


def _shifted(points: NDArray[np.int8], is_down: NDArray[np.bool_]) -> Floats:
    """Points plus or minus an eighth. points: [num_blocks, 32, 8]; is_down: [num_blocks, 32]."""
    delta = np.where(is_down, -_IQ1_DELTA, _IQ1_DELTA)
    values: Floats = points.astype(np.float32) + delta[:, :, None]
    return values.reshape(len(points), -1)


def iq1_s(blocks: Bytes) -> Floats:
    """d f16 | 32 index bytes | 8 words of 4 x 3 upper index bits, 3 scale bits, a shift: d * (2*scale + 1) * point."""
    words = u16(blocks, 34, 8)
    indices = blocks[:, 2:34] | _fields(words, 3, 4) << 8
    scales = f16(blocks, 0) * (2 * (words >> 12 & np.uint16(7)) + np.uint16(1))
    return scaled(scales, _shifted(_IQ1_S[indices], np.repeat(words >= 0x8000, 4, axis=1)))


def iq1_m(blocks: Bytes) -> Floats:
    """32 index bytes | 32 nibbles of 3 upper index bits and a shift | 4 words of 4 x 3 scale bits and a nibble of d."""
    nibbles, words = planes(blocks[:, 32:48], 4, 1), u16(blocks, 48, 4)
    indices = blocks[:, :32] | (nibbles & 7).astype(np.uint16) << 8
    quarters = (words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    scales = d * (2 * _fields(words, 3, 4) + np.uint16(1))
    return scaled(scales, _shifted(_IQ1_S[indices], nibbles >= 8))
