"""Decoders of the 256-element K types and IQ4_XS: sub-blocks with their own scales under one half-precision scale.

Each takes blocks [num_blocks, type_size] uint8 and returns [num_blocks, 256] float32. The product of the two scales
is formed first, in float32, which makes the results bit-identical to ggml's.
"""

from __future__ import annotations

import numpy as np

from sparkinfer.checkpoint.quant_fields import IQ4_VALUES, Bytes, Floats, f16, planes, scaled, u16


def q2_k(blocks: Bytes) -> Floats:
    """16 bytes of (scale, min) nibbles | 64 bytes of 2-bit q | d f16 | dmin f16: d*scale*q - dmin*min, 16 a scale."""
    scales = f16(blocks, 80) * (blocks[:, :16] & 15)
    mins = f16(blocks, 82) * (blocks[:, :16] >> 4)
    values: Floats = scaled(scales, planes(blocks[:, 16:80], 2, 32)) - np.repeat(mins, 16, axis=1)
    return values


def q3_k(blocks: Bytes) -> Floats:
    """32 bytes of high bits | 64 bytes of low pairs | 12 bytes of 6-bit scales | d f16: d*(scale-32)*(q-4)."""
    low = planes(blocks[:, 96:104], 4, 8)
    high = planes(blocks[:, 104:108], 2, 4)
    scales = f16(blocks, 108) * ((low | high << np.uint8(4)).view(np.int8) - np.int8(32))
    q = planes(blocks[:, 32:96], 2, 32) | planes(blocks[:, :32], 1, 32) << np.uint8(2)
    return scaled(scales, q.view(np.int8) - np.int8(4))


def _scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes of Q4_K and Q5_K as eight 6-bit scales and eight 6-bit mins.

    Bytes 0-3 and 4-7 hold the first four of each in their low six bits; the last four take their low nibbles from
    bytes 8-11 and their upper two bits from the top of bytes 0-3 (scales) and 4-7 (mins).
    """
    first, second, nibbles = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, nibbles & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, nibbles >> 4 | second >> 6 << 4], axis=1)
    return scales, mins


def _scaled_minus_min(blocks: Bytes, q: Bytes) -> Floats:
    """d*scale*q - dmin*min, 32 elements a scale; d, dmin and the packed scales are the first 16 bytes."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    d, dmin = f16(blocks, 0) * scales, f16(blocks, 2) * mins
    return scaled(d, q) - np.repeat(dmin, 32, axis=1)


def q4_k(blocks: Bytes) -> Floats:
    """d f16 | dmin f16 | 12 bytes of scales and mins | 128 bytes of nibbles."""
    return _scaled_minus_min(blocks, planes(blocks[:, 16:], 4, 32))


def q5_k(blocks: Bytes) -> Floats:
    """d f16 | dmin f16 | 12 bytes of scales and mins | 32 bytes of fifth bits | 128 bytes of nibbles."""
    high = planes(blocks[:, 16:48], 1, 32)
    return _scaled_minus_min(blocks, planes(blocks[:, 48:], 4, 32) | high << np.uint8(4))


def q6_k(blocks: Bytes) -> Floats:
    """128 bytes of low nibbles | 64 bytes of high pairs | 16 signed scales | d f16: d*scale*(q-32), 16 a scale."""
    q = planes(blocks[:, :128], 4, 64) | planes(blocks[:, 128:192], 2, 32) << np.uint8(4)
    scales = f16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return scaled(scales, q.view(np.int8) - np.int8(32))


def iq4_xs(blocks: Bytes) -> Floats:
    """d f16 | high pairs of the scales u16 | their low nibbles | 128 bytes of nibbles: d*(scale-32)*table[n]."""
    low = planes(blocks[:, 4:8], 4, 1)
    high = (u16(blocks, 2) >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)).astype(np.uint8)
    scales = f16(blocks, 0) * ((low | high << np.uint8(4)).view(np.int8) - np.int8(32))
    return scaled(scales, IQ4_VALUES[planes(blocks[:, 8:], 4, 16)])
