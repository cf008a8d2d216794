"""Experts over sorted tokens in plain float32: the order, both halves, the weighted sum."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantWeight
from kernels.reference.quant_weight import dequantize


def sorted_pairs(expert_ids: Tensor, num_experts: int, length: int) -> tuple[Tensor, list[list[int]]]:
    """(pairs sorted by expert, stably; [expert, first sorted place, pairs] of runs of at most `length`).

    >>> sorted_pairs(torch.tensor([[2, 0], [2, 1], [0, 2]]), 3, 2)
    (tensor([1, 4, 3, 0, 2, 5]), [[0, 0, 2], [1, 2, 1], [2, 3, 2], [2, 5, 1]])
    """
    flat = expert_ids.flatten().long()
    runs, first = [], 0
    for expert, count in enumerate(torch.bincount(flat, minlength=num_experts).tolist()):
        runs += [[expert, first + start, min(length, count - start)] for start in range(0, count, length)]
        first += count
    return flat.argsort(stable=True), runs


def grouped_experts(
    x: Tensor, expert_ids: Tensor, weights: Tensor, gate: QuantWeight, up: QuantWeight, down: QuantWeight
) -> Tensor:
    """[num_tokens, hidden] f32: sum over slots of weight * down(silu(gate x) * up x).

    x:           [num_tokens, hidden] f32
    expert_ids, weights: [num_tokens, top_k]
    gate, up:    [num_experts * ffn, hidden]; down: [num_experts * hidden, ffn]
    """
    num_experts = down.num_rows // x.shape[1]
    gates, ups, downs = (dequantize(w).view(num_experts, -1, w.num_cols) for w in (gate, up, down))
    out = torch.zeros_like(x)
    for expert in range(num_experts):
        token, slot = (expert_ids == expert).nonzero(as_tuple=True)
        rows = x[token]
        h = torch.nn.functional.silu(rows @ gates[expert].T) * (rows @ ups[expert].T)
        out.index_add_(0, token, weights[token, slot, None] * (h @ downs[expert].T))
    return out
