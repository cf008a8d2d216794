"""A layer's experts for one to eight rows: their choice, both halves and the combination. Owns no kernel.

Few rows choose where they multiply, every program for itself; from CHOSEN_FROM rows on the choice is made before,
because programs then follow one another on a multiprocessor and each would wait for its choice: by the launch that
multiplies with the router, if that takes it, else by one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.moe_down import moe_down
from kernels.moe_gate_up import moe_gate_up
from kernels.projections import project
from kernels.quant_format import QuantActivation, QuantWeight
from kernels.route_tokens import route_tokens
from kernels.router_choice import fits, router_choice

CHOSEN_FROM = 4  # rows


@dataclass(frozen=True, slots=True)
class ExpertScratch:
    """What a layer's experts leave behind; slots = top_k, one more with a shared expert.

    logits:   [num_tokens, num_experts] f32, one column more with a shared expert; rows start at multiples of 64 bytes
    h:        [num_tokens * slots, ffn]
    ids:      [num_tokens, top_k] int32
    weights:  [num_tokens, slots] f32
    count:    [1] int32, zero
    """

    logits: Tensor
    h: QuantActivation
    ids: Tensor
    weights: Tensor
    count: Tensor


def few_experts(
    x: QuantActivation,
    router: QuantWeight,
    matrices: tuple[QuantWeight, QuantWeight, QuantWeight],
    shared: tuple[QuantWeight, QuantWeight, QuantWeight] | None,
    scratch: ExpertScratch,
    residual: Tensor,
    norm_weight: Tensor,
    out: QuantActivation,
    eps: float,
    pdl: bool = False,
) -> None:
    """Add the experts' answers to the residual stream and emit the next norm's input.

    x:                 as `moe_gate_up` takes it
    router:            [num_experts, hidden], one row more with a shared expert
    matrices, shared:  gate, up, down
    residual, norm_weight, out: as `moe_down` takes them
    """
    gate, up, down = matrices
    logits = scratch.logits
    is_chosen = x.num_tokens >= CHOSEN_FROM
    if is_chosen and fits(x, router):
        router_choice(x, router, eps, logits, scratch.ids, scratch.weights, scratch.count, pdl=pdl)
    else:
        project(x, [router], eps, out=logits, pdl=pdl)
        if is_chosen:
            route_tokens(logits[None], scratch.ids, scratch.weights, pdl=pdl)
    moe_gate_up(x, logits, gate, up, shared and shared[:2], scratch.ids, scratch.h, eps, is_chosen=is_chosen, pdl=pdl)
    moe_down(scratch.h, scratch.ids, logits, down, shared and shared[2], residual, norm_weight, out,
             weights=scratch.weights if is_chosen else None, pdl=pdl)
