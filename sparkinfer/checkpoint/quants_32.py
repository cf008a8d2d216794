"""Decoders of the types with 16- or 32-element blocks: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, NVFP4.

Each takes blocks [num_blocks, type_size] uint8 and returns [num_blocks, block_size] float32. Products are formed in
float32 in the order written, which makes the results bit-identical to ggml's.
"""

from __future__ import annotations

import numpy as np

from sparkinfer.checkpoint.quant_fields import FP4_DOUBLED, IQ4_VALUES, Bytes, Floats, f16, planes, scaled, u32


def q4_0(blocks: Bytes) -> Floats:
    """d f16 | 16 bytes of nibbles: d * (n - 8)."""
    return f16(blocks, 0) * (planes(blocks[:, 2:], 4, 16).view(np.int8) - np.int8(8))


def q4_1(blocks: Bytes) -> Floats:
    """d f16 | m f16 | 16 bytes of nibbles: d * n + m."""
    return f16(blocks, 0) * planes(blocks[:, 4:], 4, 16) + f16(blocks, 2)


def _five_bits(blocks: Bytes, high_at: int) -> Bytes:
    """Nibbles in the last 16 bytes, fifth bits in the word at `high_at`."""
    high = u32(blocks, high_at) >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return planes(blocks[:, high_at + 4 :], 4, 16) | high.astype(np.uint8) << np.uint8(4)


def q5_0(blocks: Bytes) -> Floats:
    """d f16 | fifth bits u32 | 16 bytes of nibbles: d * (n - 16)."""
    return f16(blocks, 0) * (_five_bits(blocks, 2).view(np.int8) - np.int8(16))


def q5_1(blocks: Bytes) -> Floats:
    """d f16 | m f16 | fifth bits u32 | 16 bytes of nibbles: d * n + m."""
    return f16(blocks, 0) * _five_bits(blocks, 4) + f16(blocks, 2)


def q8_0(blocks: Bytes) -> Floats:
    """d f16 | 32 signed bytes: d * q."""
    return f16(blocks, 0) * blocks[:, 2:].view(np.int8)


def iq4_nl(blocks: Bytes) -> Floats:
    """d f16 | 16 bytes of nibbles: d * table[n]."""
    return scaled(f16(blocks, 0), IQ4_VALUES[planes(blocks[:, 2:], 4, 16)])


def mxfp4(blocks: Bytes) -> Floats:
    """Exponent u8 | 16 bytes of E2M1 codes: 2^(e - 128) * doubled[n]; exponents 0 and 1 are subnormal powers."""
    exponent = blocks[:, :1].astype(np.uint32)
    normal = (exponent - np.uint32(1)) << np.uint32(23)
    scale = np.where(exponent < 2, np.uint32(1 << 21) << exponent, normal).view(np.float32)
    return scaled(scale, FP4_DOUBLED[planes(blocks[:, 1:], 4, 16)])


def nvfp4(blocks: Bytes) -> Floats:
    """Four scales (unsigned E4M3, 0x00 and 0x7F are zero) | 4 x 8 bytes of E2M1 codes, 16 elements a scale."""
    byte = blocks[:, :4]
    exponent, mantissa = (byte >> 3 & 15).astype(np.int32), (byte & 7).astype(np.float32)
    subnormal = mantissa * np.float32(2.0**-9)
    scale = np.where(exponent == 0, subnormal, np.ldexp(np.float32(1) + mantissa / np.float32(8), exponent - 7))
    scale = np.where(byte == 0x7F, np.float32(0), scale) * np.float32(0.5)
    return scaled(scale, FP4_DOUBLED[planes(blocks[:, 4:], 4, 8)])
