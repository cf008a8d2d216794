"""The operations whose last bits depend on what else is in the batch, as a record that a model can exchange.

FAST is plain torch. invariant_numerics.py has the other: a row's bits depend on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.gated_delta_rule import gated_delta_rule
from kernels.reference.paged_attention import attend, attention_plan

Elementwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Numerics:
    """How to compute what torch computes in more than one way.

    linear:           (x, weight, bias or None) -> x weight^T + bias
    row_dot:          (x [rows, n], vector [n]) -> [rows]
    attention_plan:   as paged_attention.attention_plan; what it returns is for `attend` only
    attend:           as paged_attention.attend
    gated_delta_rule: as gated_delta_rule.gated_delta_rule
    """

    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    row_dot: Callable[[Tensor, Tensor], Tensor]
    silu: Elementwise
    gelu_tanh: Elementwise
    sigmoid: Elementwise
    softplus: Elementwise
    attention_plan: Callable[..., Any]
    attend: Callable[..., Tensor]
    gated_delta_rule: Callable[..., Tensor]


FAST = Numerics(
    linear=F.linear,
    row_dot=torch.matmul,
    silu=F.silu,
    gelu_tanh=partial(F.gelu, approximate="tanh"),
    sigmoid=torch.sigmoid,
    softplus=F.softplus,
    attention_plan=attention_plan,
    attend=attend,
    gated_delta_rule=gated_delta_rule,
)
