"""What a prompt's delta-net layers compute between their projections: kernels on a GPU, plain torch on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.causal_conv_silu import causal_conv_silu
from kernels.reference.causal_conv1d import causal_conv_silu as plain_conv_silu
from sparkinfer.model.cuda.chunked_delta_rule import chunked_delta_rule, plain_delta_rule


@dataclass(frozen=True, slots=True)
class Recurrence:
    """convolve: kernels/causal_conv_silu.py; delta_rule: `chunked_delta_rule`; both move their state on in place."""

    convolve: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    delta_rule: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

    @classmethod
    def of(cls, device: torch.device) -> Recurrence:
        if device.type == "cpu":
            return cls(plain_conv_silu, plain_delta_rule)
        return cls(causal_conv_silu, chunked_delta_rule)
