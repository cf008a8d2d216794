"""How long masks take, in words that other processes can read. Knows durations; never masks.

Written by the threads that compute masks, all of one worker: an addition that is lost once in a while is no matter.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Microseconds. A mask is a lookup, or a walk over the whole vocabulary.
MASK_BOUNDS_US: Final = (25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 50_000)


class MaskStats:
    """Counts since the worker's start."""

    def __init__(self) -> None:
        self.counts = [0] * (len(MASK_BOUNDS_US) + 1)  # the last one: longer than all bounds
        self.total_us = 0
        self.num_tool_requests = 0        # whose calls a grammar held
        self.num_forced_requests = 0      # that had to make a call
        self.num_structured_requests = 0  # whose content a grammar held
        self.num_forced_tokens = 0        # that a grammar left no choice about

    def add(self, seconds: float) -> None:
        """One mask."""
        microseconds = round(seconds * 1e6)
        self.counts[bisect_left(MASK_BOUNDS_US, microseconds)] += 1
        self.total_us += microseconds
