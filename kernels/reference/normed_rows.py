"""What a layer adds to the residual stream, and its RMS norm, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted(products: Tensor, weights: Tensor, shared: Tensor | None) -> Tensor:
    """products [num_tokens * top_k, hidden] times their weights, and the shared expert's parts [num_splits, num_tokens,
    hidden] times the last column of weights, added up: [num_tokens, hidden]."""
    num_tokens = weights.shape[0]
    top_k = products.shape[0] // num_tokens
    total = (products.float().view(num_tokens, top_k, -1) * weights[:, :top_k, None]).sum(1)
    return total if shared is None else total + shared.sum(0) * weights[:, top_k:]


def normed(residual: Tensor, norm_weight: Tensor, eps: float) -> Tensor:
    return residual * norm_weight * torch.rsqrt(residual.square().mean(-1, keepdim=True) + eps)
