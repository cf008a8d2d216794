"""Random numbers that depend on (seed, position, token id) and on nothing else.

A row's draw is therefore the same in every batch, after every preemption and on every device, and a kernel can make
the number of a token where it reads that token's logit: no state, no sort, no second pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

UINT32 = 0xFFFFFFFF
UINT64 = 0xFFFFFFFFFFFFFFFF

MAX_GUMBEL = 22.9   # -log(-log1p(-v)) at the smallest v, 2^-33
MIN_GUMBEL = -2.82  # and at the largest, 1 - 2^-24


def noise_keys(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """A 64-bit key per row, as two halves.

    seeds, positions: [num_rows]; position of the token to be sampled in its sequence
    returns           [2, num_rows], each in [0, 2^32)
    """
    keys = _split_mix(_split_mix(seeds) + positions.astype(np.uint64))
    return np.stack([keys & np.uint64(UINT32), keys >> np.uint64(32)]).astype(np.int64)


def gumbel(low: Tensor, high: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise: argmax of log p + gumbel is a draw from p.

    low, high, token_ids: int64, shapes that broadcast; halves of noise_keys and ids below 2^32
    returns               f32 in [MIN_GUMBEL, MAX_GUMBEL], as -log of an exponential variate, which keeps its
                          precision where it matters, near the winning end
    """
    bits = _mix(token_ids ^ low, 16, 0x85EBCA6B, 13, 0xC2B2AE35)        # MurmurHash3's 32-bit finaliser
    bits = _mix((bits + high) & UINT32, 16, 0x7FEB352D, 15, 0x846CA68B)  # "lowbias32" (C. Wellons, 2018)
    uniform = ((bits.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return -torch.log(-torch.log1p(-uniform))


def _split_mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mix(bits: Tensor, shift: int, factor: int, second_shift: int, second_factor: int) -> Tensor:
    """Mix 32-bit values held in int64, whose products wrap without harm to the low half."""
    bits = bits ^ (bits >> shift)
    bits = (bits * factor) & UINT32
    bits ^= bits >> second_shift
    bits = (bits * second_factor) & UINT32
    return bits ^ (bits >> 16)
