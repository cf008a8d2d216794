"""Memory of the CPU kernels: aligned, zero, nobody else's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparkinfer.model.cpu.memory import ALIGNMENT, REGION_BYTES, SLACK, aligned_bytes


def test_arrays_are_aligned_zero_and_apart() -> None:
    sizes = [0, 1, 63, 64, 65, 5000, REGION_BYTES // 2, REGION_BYTES // 3, REGION_BYTES // 3, REGION_BYTES + 1]
    arrays = [aligned_bytes(size) for size in sizes]
    assert [len(array) for array in arrays] == sizes
    assert all(array.ctypes.data % ALIGNMENT == 0 for array in arrays)
    bounds = sorted((array.ctypes.data, array.ctypes.data + len(array) + SLACK) for array in arrays)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(bounds))
    for index, array in enumerate(arrays):
        assert not array.any()
        array[:] = index + 1


@pytest.mark.parametrize("size", [1000, REGION_BYTES])
def test_an_array_outlives_those_beside_it(size: int) -> None:
    kept = aligned_bytes(size)
    kept[:] = 7
    for _ in range(40):
        aligned_bytes(REGION_BYTES // 3)[:100] = 1
    assert np.all(kept == 7)
