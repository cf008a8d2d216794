"""top_k, top_p and min_p as one cut-off per row. Knows logits; never penalties, noise or sequences.

Each filter keeps the tokens whose logit is at least its cut-off, so tokens equal to the cut-off stay together: the
kept set does not depend on the order in which equal logits happen to be sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Filters of rows that each use at least one of them; tensors on the device."""

    top_k: Tensor          # [num_rows] int64, 0: off
    top_p: Tensor          # [num_rows] f32, 1: off
    min_p: Tensor          # [num_rows] f32, 0: off
    num_candidates: int    # best tokens of each row to look at first; all are looked at where that is not enough
    has_open_top_p: bool   # some row has top_p without top_k, and needs the sum over its whole vocabulary
    has_top_k: bool = True
    has_top_p: bool = True


def keep(logits: Tensor, filters: TokenFilter) -> tuple[Tensor, Tensor]:
    """The tokens that pass: top_k first, then top_p of what that leaves, then min_p relative to the best.

    logits:  [num_rows, vocab_size] f32, already divided by the temperature
    returns  logits [num_rows, num_candidates] f32, best first, -inf where a candidate does not pass, and their
             token ids [num_rows, num_candidates] int64
    """
    vocab_size = logits.shape[1]
    num_candidates = min(filters.num_candidates, vocab_size)
    values, token_ids = logits.topk(num_candidates, dim=-1)
    cutoff, are_enough = _cutoff(logits, values, filters)
    if num_candidates < vocab_size and not bool(are_enough.all()):
        values, token_ids = logits.sort(dim=-1, descending=True)
        cutoff, _ = _cutoff(logits, values, filters)
    return values.masked_fill(values < cutoff[:, None], float("-inf")), token_ids


def _cutoff(logits: Tensor, values: Tensor, filters: TokenFilter) -> tuple[Tensor, Tensor]:
    """Lowest logit kept, and whether `values` held enough tokens to find it and all its equals; [num_rows] each."""
    num_candidates = values.shape[1]
    best, last = values[:, 0], values[:, -1]
    has_top_k = filters.top_k > 0
    index = torch.where(has_top_k, filters.top_k, 1).clamp(max=num_candidates) - 1
    top_k_cutoff = torch.where(has_top_k, values.gather(1, index[:, None])[:, 0], float("-inf"))

    weights = torch.exp((values - best[:, None]).double()) * (values >= top_k_cutoff[:, None])
    sums = weights.cumsum(dim=-1)  # one after the other: the zeros beyond top_k change nothing, however many there are
    total = sums[:, -1]
    if filters.has_open_top_p:
        best_logprob = torch.log_softmax(logits, dim=-1).amax(dim=-1)
        total = torch.where(has_top_k, total, torch.exp(-best_logprob.double()))
    is_short = sums < (filters.top_p * total)[:, None]
    index = is_short.sum(dim=-1, keepdim=True).clamp(max=num_candidates - 1)
    top_p_cutoff = torch.where(filters.top_p < 1, values.gather(1, index)[:, 0], float("-inf"))

    cutoff = torch.maximum(torch.maximum(top_k_cutoff, top_p_cutoff), best + torch.log(filters.min_p))
    return cutoff, last < torch.where(has_top_k, top_k_cutoff, cutoff)
