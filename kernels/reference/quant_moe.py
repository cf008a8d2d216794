"""Experts of quantised weights on 16-bit activations, in plain float32: choice, first half, second half."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant_format import QuantActivation, QuantWeight
from kernels.reference.moe import route
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows, rms_factor
from kernels.reference.quant_weight import dequantize


def quant_route(logits: Tensor, top_k: int, has_shared: bool) -> tuple[Tensor, Tensor]:
    """(expert_ids [num_tokens, top_k], weights [num_tokens, top_k + 1]: the last is the shared expert's sigmoid
    gate)."""
    num_experts = logits.shape[1] - has_shared
    weights, expert_ids = route(logits[:, :num_experts], top_k)
    gate = torch.sigmoid(logits[:, num_experts:]) if has_shared else torch.zeros_like(weights[:, :1])
    return expert_ids, torch.cat([weights, gate], dim=-1)


def _expert(weight: Tensor, expert: int, rows: int) -> Tensor:
    return weight[expert * rows : (expert + 1) * rows]


def moe_gate_up(
    x: QuantActivation, expert_ids: Tensor, gate: QuantWeight, up: QuantWeight,
    shared: tuple[QuantWeight, QuantWeight] | None, num_experts: int, eps: float,
) -> QuantActivation:
    """[num_tokens * slots, ffn]: silu(gate x) * (up x) of each slot."""
    ffn = gate.num_rows // num_experts
    rows = dequantize_rows(x) * rms_factor(x, eps)
    gates, ups = dequantize(gate), dequantize(up)
    parts = []
    for row, ids in zip(rows, expert_ids.tolist(), strict=True):
        pairs = [(_expert(gates, e, ffn), _expert(ups, e, ffn)) for e in ids]
        if shared is not None:
            pairs.append((dequantize(shared[0]), dequantize(shared[1])))
        parts += [torch.nn.functional.silu(g @ row) * (u @ row) for g, u in pairs]
    return quantize_rows(torch.stack(parts))


def moe_down(
    h: QuantActivation, expert_ids: Tensor, weights: Tensor, down: QuantWeight, shared_down: QuantWeight | None,
    residual: Tensor,
) -> Tensor:
    """[num_tokens, hidden] f32: residual + sum over slots of weight * down h."""
    hidden = residual.shape[1]
    downs = dequantize(down)
    slots = expert_ids.shape[1] + (shared_down is not None)
    rows = dequantize_rows(h).reshape(residual.shape[0], slots, -1)
    result = residual.clone()
    for m, ids in enumerate(expert_ids.tolist()):
        for slot, expert in enumerate(ids):
            result[m] += weights[m, slot] * (_expert(downs, expert, hidden) @ rows[m, slot])
        if shared_down is not None:
            result[m] += weights[m, -1] * (dequantize(shared_down) @ rows[m, -1])
    return result


def swiglu(x: QuantActivation, gate: QuantWeight, up: QuantWeight, eps: float) -> QuantActivation:
    """[num_tokens, ffn]: silu(gate x) * (up x)."""
    rows = dequantize_rows(x) * rms_factor(x, eps)
    return quantize_rows(torch.nn.functional.silu(rows @ dequantize(gate).T) * (rows @ dequantize(up).T))
