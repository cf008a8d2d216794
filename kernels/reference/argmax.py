"""The greedy choice: the lowest index of the largest logit."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(logits: Tensor) -> Tensor:
    """logits [num_rows, vocab_size] -> [num_rows] int64."""
    best = logits.amax(-1, keepdim=True)
    index = torch.arange(logits.shape[1], device=logits.device)
    return torch.where(logits == best, index, logits.shape[1]).amin(-1)
