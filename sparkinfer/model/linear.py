"""Matrices applied to rows: y = W x + b, the embedding table, and their fusion. Knows weights; never layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkinfer.model.module import Module, unloaded


class Linear(Module):
    """y = x W^T + b.

    weight: [out_features, in_features] f32
    bias:   [out_features] f32, or None
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        self.weight = unloaded(out_features, in_features)
        self.bias = unloaded(out_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, in_features] -> [num_tokens, out_features]."""
        return self.numerics.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Rows of a table by token id; the same table serves as output head where the two are tied.

    weight: [vocab_size, hidden_size] f32
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self.weight = unloaded(vocab_size, hidden_size)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """input_ids: [num_tokens] int64 -> [num_tokens, hidden_size]."""
        return F.embedding(input_ids, self.weight)


def fuse(*linears: Linear) -> Linear:
    """One matrix whose output is the outputs of `linears` side by side; their weights become views of it."""
    fused = Linear(0, 0)
    sizes = [linear.weight.shape[0] for linear in linears]
    fused.weight = torch.cat([linear.weight for linear in linears])
    for linear, rows in zip(linears, torch.split(fused.weight, sizes), strict=True):
        linear.weight = rows
    if any(linear.bias is not None for linear in linears):
        fused.bias = torch.cat([linear.weight.new_zeros(size) if linear.bias is None else linear.bias
                                for linear, size in zip(linears, sizes, strict=True)])
    return fused
