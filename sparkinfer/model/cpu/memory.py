"""Arrays at addresses that vector loads like, in large pages: a step touches every page of the weights. Bytes only."""

from __future__ import annotations

import ctypes
import mmap
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
SLACK = 64  # behind every array: kernels read and write whole vectors
LARGE_PAGE = 1 << 21
REGION_BYTES = 1 << 25

Bytes = npt.NDArray[np.uint8]


class Regions:
    """Regions of large pages and what is left of the latest; one lives as long as an array in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: Bytes = np.zeros(0, np.uint8)

    def take(self, num_bytes: int) -> Bytes:
        """Zeros, aligned, from pages that take no memory until they are written."""
        size = -(-(num_bytes + SLACK) // ALIGNMENT) * ALIGNMENT
        if size > REGION_BYTES // 2:
            return _region(size)[:num_bytes]
        with self._lock:
            if size > len(self._left):
                self._left = _region(REGION_BYTES)
            taken, self._left = self._left[:num_bytes], self._left[size:]
        return taken


def _region(num_bytes: int) -> Bytes:
    pages = mmap.mmap(-1, num_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    region = np.frombuffer(pages, np.uint8)
    start = -region.ctypes.data % LARGE_PAGE
    return region[start : start + num_bytes]


_regions = Regions()


def aligned_bytes(num_bytes: int) -> Bytes:
    """Zeros, from pages that take no memory until they are written."""
    return _regions.take(num_bytes)


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
