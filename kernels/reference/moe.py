"""Mixture of experts: a softmax router picks k experts per token; each expert is a gated feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.activation import activate_and_mul
from kernels.reference.numerics import FAST, Numerics


def route(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the k largest, renormalised to sum 1.

    router_logits: [num_tokens, num_experts] f32
    returns        weights [num_tokens, top_k] f32 and expert ids [num_tokens, top_k] int64
    """
    probabilities = torch.softmax(router_logits.float(), dim=-1)
    weights, expert_ids = probabilities.topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), expert_ids


def moe(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, expert_ids: Tensor, numerics: Numerics = FAST
) -> Tensor:
    """sum_e weights_e * down_e(silu(gate_e x) * up_e x), tokens grouped by expert.

    Each token's k results are added in the order of `expert_ids`, whatever else is in the batch.

    x:          [num_tokens, hidden] f32
    gate_up:    [num_experts, 2 * ffn, hidden] f32, gate rows first
    down:       [num_experts, hidden, ffn] f32
    weights:    [num_tokens, top_k] f32
    expert_ids: [num_tokens, top_k] int64
    returns     [num_tokens, hidden] f32
    """
    num_tokens, top_k = expert_ids.shape
    order = expert_ids.flatten().argsort(stable=True)
    rows = x.index_select(0, order // top_k)
    counts = torch.bincount(expert_ids.flatten(), minlength=gate_up.shape[0]).tolist()
    grouped = torch.empty_like(rows)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            span = slice(start, start + count)
            hidden = activate_and_mul(numerics.linear(rows[span], gate_up[expert], None), numerics.silu)
            grouped[span] = numerics.linear(hidden, down[expert], None)
            start += count
    out = torch.empty_like(grouped).index_copy_(0, order, grouped).view(num_tokens, top_k, -1)
    return (out * weights[:, :, None]).sum(1)
