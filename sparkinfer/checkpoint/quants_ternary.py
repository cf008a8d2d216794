"""Decoders of the ternary types TQ1_0 and TQ2_0: values -d, 0, d.

Each takes blocks [num_blocks, type_size] uint8 and returns [num_blocks, 256] float32.
"""

from __future__ import annotations

import numpy as np

from sparkinfer.checkpoint.quant_fields import Bytes, Floats, f16, planes


def _trits(packed: Bytes, per_byte: int) -> Bytes:
    """Base-3 digits, most significant first, of fractions byte/256, one plane of bytes per digit.

    The product with the power of three wraps at 256, which drops the digits already read.
    """
    powers = np.array([1, 3, 9, 27, 81][:per_byte], np.uint8).reshape(-1, 1)
    digits = (packed[:, None, :] * powers).astype(np.uint16) * np.uint16(3) >> np.uint16(8)
    return digits.astype(np.uint8).reshape(len(packed), -1)


def tq1_0(blocks: Bytes) -> Floats:
    """48 bytes of 5 trits (planes of 32, then of 16 bytes) | 4 bytes of 4 trits | d f16: d * (t - 1)."""
    parts = [_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4)]
    return f16(blocks, 52) * (np.concatenate(parts, axis=1).view(np.int8) - np.int8(1))


def tq2_0(blocks: Bytes) -> Floats:
    """64 bytes of 2-bit q in planes of 32 bytes | d f16: d * (q - 1)."""
    return f16(blocks, 64) * (planes(blocks[:, :64], 2, 32).view(np.int8) - np.int8(1))
