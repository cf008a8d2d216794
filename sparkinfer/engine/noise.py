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


def noise_keys(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """A 64-bit key per row, as two halves.

    seeds, positions: [num_rows]; position of the token to be sampled in its sequence
    returns           [2, num_rows], low halves first
    """
    keys = _split_mix(_split_mix(seeds) + positions.astype(np.uint64))
    return np.stack([keys & np.uint64(UINT32), keys >> np.uint64(32)]).astype(np.uint32).view(np.int32)


def gumbel(low: Tensor, high: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise: argmax of log p + gumbel is a draw from p.

    low, high, token_ids: int32, shapes that broadcast; halves of noise_keys, and ids
    returns               f32 in [-2.82, 22.2], -log of an exponential variate that is made from 31 bits so that it
                          keeps its precision near 0, the winning end
    """
    bits = _mix(token_ids ^ low, 16, 0x85EBCA6B, 13, 0xC2B2AE35)  # MurmurHash3's 32-bit finaliser
    bits = _mix(bits.add_(high), 16, 0x7FEB352D, 15, 0x846CA68B)  # "lowbias32" (C. Wellons, 2018)
    uniform = bits.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _split_mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mix(bits: Tensor, shift: int, factor: int, second_shift: int, second_factor: int) -> Tensor:
    """Mix int32 values taken as unsigned, in place."""
    bits ^= _shifted(bits, shift)
    bits *= _signed(factor)
    bits ^= _shifted(bits, second_shift)
    bits *= _signed(second_factor)
    bits ^= _shifted(bits, 16)
    return bits


def _shifted(bits: Tensor, shift: int) -> Tensor:
    return (bits >> shift).bitwise_and_((1 << (32 - shift)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
