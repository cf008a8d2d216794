"""Cosines and sines of the positions that steps have come to. Knows a rotary embedding; never sequences."""

from __future__ import annotations

import numpy as np

from sparkinfer.model.cpu.memory import aligned_bytes
from sparkinfer.model.rope import Rope

CHUNK = 1024  # positions worked out at once


class AngleTable:
    """[max_positions, dim / 2] f32 each, of which the first `num_positions` are there; more rows where they are wanted.

    addresses: of position 0's cosines and sines; others after a `reach`
    """

    def __init__(self, rope: Rope, max_positions: int) -> None:
        self._inv_freq = rope.inv_freq.numpy().astype(np.float64)
        self._magnitude = rope.magnitude
        self.num_positions = 0
        self._allocate(max_positions)

    def reach(self, num_positions: int) -> None:
        """Work out the positions below `num_positions` that are missing."""
        if num_positions > len(self._cos):
            self._allocate(2 * num_positions)
        first, end = self.num_positions, min(-(-num_positions // CHUNK) * CHUNK, len(self._cos))
        angles = np.arange(first, end, dtype=np.float64)[:, None] * self._inv_freq
        self._cos[first:end] = np.cos(angles) * self._magnitude
        self._sin[first:end] = np.sin(angles) * self._magnitude
        self.num_positions = end

    def _allocate(self, max_positions: int) -> None:
        shape = max_positions, len(self._inv_freq)
        self._cos, self._sin = (aligned_bytes(4 * shape[0] * shape[1]).view(np.float32).reshape(shape) for _ in "cs")
        self.addresses = self._cos.ctypes.data, self._sin.ctypes.data
        self.num_positions = 0
