"""top_k, top_p and min_p as one threshold per row. Knows logits; never penalties, noise or sequences.

Each filter keeps the tokens whose logit is at least its cut-off, so tokens equal to the cut-off stay together: the
kept set does not depend on the order in which equal logits happen to be sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Candidates sorted for a row with top_p before the whole vocabulary is: nearly always enough, a tenth of the time.
NUM_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Filters of the rows of one batch, on the device; the flags say on the host whether anyone uses a filter."""

    top_k: Tensor        # [num_rows] int64, 0: off
    top_p: Tensor        # [num_rows] f32, 1: off
    min_p: Tensor        # [num_rows] f32, 0: off
    max_top_k: int       # over the rows
    uses_top_p: bool
    uses_min_p: bool


def cutoffs(logits: Tensor, filters: TokenFilter) -> Tensor:
    """The logit from which on a token is kept: top_k first, top_p of what that leaves, min_p relative to the best.

    logits:  [num_rows, vocab_size] f32, already divided by the temperature
    returns  [num_rows] f32, at most the row's maximum
    """
    cutoff = torch.full_like(logits[:, 0], float("-inf"))
    if filters.max_top_k or filters.uses_top_p:
        vocab_size = logits.shape[1]
        num_candidates = max(filters.max_top_k, NUM_CANDIDATES if filters.uses_top_p else 1)
        cutoff, is_complete = _top_k_top_p(logits, filters, min(num_candidates, vocab_size))
        if not is_complete:
            cutoff, _ = _top_k_top_p(logits, filters, vocab_size)
    if filters.uses_min_p:
        cutoff = torch.maximum(cutoff, logits.amax(dim=-1) + torch.log(filters.min_p))
    return cutoff


def _top_k_top_p(logits: Tensor, filters: TokenFilter, num_candidates: int) -> tuple[Tensor, bool]:
    """Cut-offs from the best `num_candidates` logits of each row, and whether those were enough."""
    values = logits.topk(num_candidates, dim=-1).values  # [num_rows, num_candidates], falling
    has_top_k = filters.top_k > 0
    last = torch.where(has_top_k, filters.top_k, 1).clamp(max=num_candidates) - 1
    cutoff = torch.where(has_top_k, values.gather(1, last[:, None])[:, 0], float("-inf"))
    if not filters.uses_top_p:
        return cutoff, True
    best = values[:, :1]
    weights = torch.exp((values - best).double()) * (values >= cutoff[:, None])
    total = torch.exp((logits.logsumexp(dim=-1) - best[:, 0]).double())
    total = torch.where(has_top_k, weights.sum(dim=-1), total)
    mass = weights.cumsum(dim=-1)
    wanted = (filters.top_p * total)[:, None]
    first_enough = (mass < wanted).sum(dim=-1, keepdim=True).clamp(max=num_candidates - 1)
    has_top_p = filters.top_p < 1
    is_complete = torch.where(has_top_k, values[:, -1] < cutoff, mass[:, -1] >= wanted[:, 0]) | ~has_top_p
    cutoff = torch.where(has_top_p, torch.maximum(cutoff, values.gather(1, first_enough)[:, 0]), cutoff)
    return cutoff, num_candidates == logits.shape[1] or bool(is_complete.all())
