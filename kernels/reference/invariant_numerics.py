"""Numerics in which the bits of a row depend on that row and its sequence's past alone.

torch's sigmoid and its relatives call other code for the last few elements of a tensor than for full vectors; exp,
tanh and log1p do not (tests/kernels/reference/test_invariant_numerics.py tries them), so they are built from those.
Norms, softmax and sums over the last axis are computed row by row by torch as they are.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from kernels.reference.gated_delta_rule import gated_delta_rule, recurrent_gated_delta_rule
from kernels.reference.invariant_attention import TiledAttention, tiled_attention_plan
from kernels.reference.invariant_matmul import InvariantMatmul
from kernels.reference.numerics import Numerics

SOFTPLUS_LINEAR_ABOVE = 20.0  # as torch: log(1 + exp(x)) is x there


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.exp(-x).add_(1.0).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    return x / torch.exp(-x).add_(1.0)


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = (x + 0.044715 * (x * x * x)).mul_(math.sqrt(2.0 / math.pi))
    return torch.tanh(inner).add_(1.0).mul_(x).mul_(0.5)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return torch.where(x > SOFTPLUS_LINEAR_ABOVE, x, torch.log1p(torch.exp(x)))


def row_dot(x: Tensor, vector: Tensor) -> Tensor:
    """x: [num_rows, n] f32, vector: [n] f32 -> [num_rows]."""
    return (x * vector).sum(-1)


def invariant_numerics(matmul: InvariantMatmul) -> Numerics:
    """A prompt's tokens go through the delta rule one by one, as decode's do."""
    return Numerics(
        linear=matmul.linear,
        row_dot=row_dot,
        silu=silu,
        gelu_tanh=gelu_tanh,
        sigmoid=sigmoid,
        softplus=softplus,
        attention_plan=tiled_attention_plan,
        attend=TiledAttention(matmul).attend,
        gated_delta_rule=partial(gated_delta_rule, prefill_rule=recurrent_gated_delta_rule),
    )
