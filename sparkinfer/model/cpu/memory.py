"""Arrays at addresses that vector loads like. Knows bytes only."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
SLACK = 64  # behind every array: kernels read and write whole vectors


def aligned_bytes(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros, from pages that take no memory until they are written."""
    raw = np.zeros(num_bytes + ALIGNMENT + SLACK, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + num_bytes]


def aligned_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values in an aligned, contiguous array."""
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def return_freed_memory() -> None:
    """Give the system back what was freed; a C library that is not glibc does as it likes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
