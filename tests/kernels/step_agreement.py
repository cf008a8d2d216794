"""Whether a decode step computes what the reference does, row by row, where experts may be all but tied.

A step rounds otherwise than the reference: which of two experts comes last among the chosen is open where their logits
differ by less than that moves them, and either choice is right, though the row's numbers differ from there on. So the
reference follows the step: layer by layer, a row's output must be the reference's with one of the choices that the
tie leaves open, given what the row chose in the layers before. No row is left out, and no choice but among ties passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparkinfer.model.cuda.decode import DecodeInputs
from sparkinfer.model.cuda.weights import DecodeWeights, ExpertFFN
from tests.kernels.random_model import cloned
from tests.kernels.reference_step import Routing, reference_step

# Between logits of spread 1. Rows that met no tie are off by 1e-3 of their length at the median, 5e-3 at most (H200,
# four layers): so is a logit, the difference of two by 1.4 times that, and a tie is three times the largest.
TIE = 0.02


@dataclass(frozen=True, slots=True)
class Agreement:
    """row_errors: [num_seqs], relative, the largest over all depths; logits: the reference's after the last layer,
    which left caches and states in `inputs`; num_ties: choices of the step that were not the reference's own."""

    row_errors: Tensor
    logits: Tensor
    inputs: DecodeInputs
    num_ties: int


def agreement(
    weights: DecodeWeights, inputs: DecodeInputs, run: Callable[[DecodeWeights, DecodeInputs], Tensor]
) -> Agreement:
    """run: the step under test, of any number of the first layers: logits; it changes the inputs that it is given."""
    banned: list[Tensor] = []
    worst = torch.zeros(inputs.num_seqs, device=inputs.input_ids.device)
    num_ties = 0
    for depth, layer in enumerate(weights.layers, 1):
        part = replace(weights, layers=weights.layers[:depth])
        if isinstance(layer.ffn, ExpertFFN):
            bans, errors = _followed(part, inputs, run(part, cloned(inputs)), banned, layer.ffn.top_k)
            banned.append(bans)
            num_ties += int(bans.any(dim=1).sum())
        elif depth == len(weights.layers):
            errors = _row_errors(run(part, cloned(inputs)), reference_step(part, cloned(inputs)))
        else:
            continue
        worst = torch.maximum(worst, errors)
    left = cloned(inputs)
    logits = reference_step(weights, left, routing=Routing(banned))
    return Agreement(worst, logits, left, num_ties)


def _followed(
    weights: DecodeWeights, inputs: DecodeInputs, actual: Tensor, banned: list[Tensor], top_k: int
) -> tuple[Tensor, Tensor]:
    """(what the last layer's rows did not take though it came before what they took, errors then)."""
    routing = Routing(banned)
    errors = _row_errors(actual, reference_step(weights, cloned(inputs), routing=routing))
    ranked, experts = routing.logits[-1].sort(dim=1, descending=True)
    found = torch.zeros_like(ranked, dtype=torch.bool)
    for skipped, taken in _exchanges(top_k, ranked.shape[1]):
        is_tie = ranked[:, min(skipped)] - ranked[:, max(taken)] < TIE
        if not is_tie.any():
            continue
        left_out = [*skipped, *(rank for rank in range(top_k, max(taken)) if rank not in taken)]
        bans = torch.zeros_like(found)
        bans.scatter_(1, experts[:, left_out], is_tie[:, None].expand(-1, len(left_out)))
        other = _row_errors(actual, reference_step(weights, cloned(inputs), routing=Routing([*banned, bans])))
        is_nearer = is_tie & (other < errors)
        found = torch.where(is_nearer[:, None], bans, found)
        errors = torch.where(is_nearer, other, errors)
    return found, errors


def _exchanges(top_k: int, num_experts: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ranks that a tie may leave out of the chosen, and those taken for them: one or both of the last two."""
    last = top_k - 1
    lasts = [(rank,) for rank in (last, last - 1) if rank >= 0]
    firsts = [(rank,) for rank in range(top_k, min(top_k + 3, num_experts))]
    both = [((last, last - 1), (top_k, top_k + 1))] if last > 0 and top_k + 1 < num_experts else []
    return [(skipped, taken) for skipped in lasts for taken in firsts] + both


def _row_errors(actual: Tensor, expected: Tensor) -> Tensor:
    """[num_seqs]; infinite where an output is not finite."""
    errors = (actual - expected).norm(dim=1) / expected.norm(dim=1)
    return errors.nan_to_num(torch.inf, torch.inf)
