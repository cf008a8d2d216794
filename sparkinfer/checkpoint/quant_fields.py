"""What the block formats share: half-precision scales, packed bit fields, and the FP4 and IQ4 value tables.

Everywhere: blocks is [num_blocks, type_size] uint8, the raw bytes of consecutive blocks, and fields come out with
the block as the first axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Code -> value of the non-linear 4-bit types (IQ4_NL, IQ4_XS).
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
# E2M1 codes as twice their value, so that they are integers; code 8 (minus zero) decodes to plain zero, as in ggml.
FP4_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def f16(blocks: Bytes, at: int) -> Floats:
    """The little-endian half at byte `at` of each block: [num_blocks, 1] float32."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def u16(blocks: Bytes, at: int, count: int = 1) -> NDArray[np.uint16]:
    """`count` little-endian words from byte `at`: [num_blocks, count]."""
    return blocks[:, at : at + 2 * count].copy().view("<u2")


def u32(blocks: Bytes, at: int, count: int = 1) -> NDArray[np.uint32]:
    """`count` little-endian double words from byte `at`: [num_blocks, count]."""
    return blocks[:, at : at + 4 * count].copy().view("<u4")


def planes(packed: Bytes, width: int, group: int) -> Bytes:
    """Unpack `width`-bit fields laid out in planes.

    Bytes come in groups of `group`; the lowest `width` bits of a group's bytes are its first `group` elements, the
    next `width` bits the following ones, and so on. packed: [num_blocks, num_bytes];
    returns [num_blocks, num_bytes * 8 / width].
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(-1, 1)
    fields = packed.reshape(len(packed), -1, 1, group) >> shifts & np.uint8((1 << width) - 1)
    return fields.reshape(len(packed), -1)


def scaled(scales: Floats, q: NDArray[Any]) -> Floats:
    """Each scale times its equal share of the block's elements.

    scales: [num_blocks, num_scales]; q: [num_blocks, block_size] small integers; returns q's shape, float32.
    """
    groups = q.reshape(*scales.shape, -1)
    product: Floats = np.multiply(scales[:, :, None], groups, dtype=np.float32)
    return product.reshape(len(q), -1)
