"""A random token per row among those that pass the filters, by sorting, in plain float32 and float64."""

from __future__ import annotations

import torch
from torch import Tensor


def keep(logits: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Which tokens of one row pass, [vocab_size] bool: top_k, top_p of what is left, then min_p; equals stay together.

    logits: [vocab_size] f32, already divided by the temperature; top_k 0, top_p 1, min_p 0: off
    """
    best_first = logits.sort(descending=True).values
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_k:
        kept &= logits >= best_first[min(top_k, len(logits)) - 1]
    if top_p < 1:
        weights = torch.exp((best_first - best_first[0]).double()) * (best_first >= logits[kept].min())
        sums = weights.cumsum(0)
        index = int((sums < torch.tensor(top_p).double() * sums[-1]).sum())
        kept &= logits >= best_first[min(index, len(logits) - 1)]
    return kept & (logits >= best_first[0] + torch.tensor(min_p).log())


def gumbel(key: int, token_ids: Tensor) -> Tensor:
    """Noise of a 64-bit key and token ids [num_tokens] int64, in float64; two hashes of 32 bits one after the other."""
    bits = _mix(token_ids ^ (key & 0xFFFFFFFF), 16, 0x85EBCA6B, 13, 0xC2B2AE35)
    bits = _mix((bits + (key >> 32)) & 0xFFFFFFFF, 16, 0x7FEB352D, 15, 0x846CA68B)
    uniform = ((bits & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-24).double()))


def _mix(bits: Tensor, shift: int, factor: int, second_shift: int, second_factor: int) -> Tensor:
    bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> second_shift)) * second_factor) & 0xFFFFFFFF
    return bits ^ (bits >> 16)
