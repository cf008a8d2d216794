"""A layer's experts for many tokens: choose, sort by expert, run each expert once over its tokens, combine.

Knows which kernels take which experts; never where the rows come from. Nothing waits for the device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.combine_experts import combine_experts
from kernels.expert_rows import expert_down, expert_gate_up, fits, run_length
from kernels.pack_halves import pack_rows
from kernels.quant_format import QuantWeight
from kernels.reference.grouped_experts import grouped_experts as reference_experts
from kernels.reference.quant_moe import quant_route
from kernels.route_tokens import route_tokens
from kernels.sort_tokens import Runs, sort_tokens
from sparkinfer.model.cuda import dequantize
from sparkinfer.model.cuda.weights import ExpertFFN


def have_kernels(ffn: ExpertFFN) -> bool:
    """Whether quantised experts are read as they are."""
    return fits(ffn.gate, ffn.down)


def num_experts(ffn: ExpertFFN) -> int:
    return ffn.router.num_rows - (ffn.shared is not None)


def choose(logits: Tensor, ffn: ExpertFFN, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """(expert ids [num_tokens, top_k] int32, weights [num_tokens, top_k] f32); with a shared expert one column more,
    its sigmoid gate.

    logits:  [num_parts, num_tokens, num_experts] f32, the router's, to be added up; with a shared expert one column
             more
    """
    num_tokens = logits.shape[1]
    if not logits.is_cuda:
        ids, weights = quant_route(logits.sum(0), ffn.top_k, ffn.shared is not None)
        return ids.int(), weights if ffn.shared is not None else weights[:, : ffn.top_k].contiguous()
    ids = torch.empty(num_tokens, ffn.top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(num_tokens, ffn.top_k + (ffn.shared is not None), device=logits.device)
    route_tokens(logits, ids, weights, pdl)
    return ids, weights


def products(
    x: Tensor, expert_ids: Tensor, ffn: ExpertFFN, dtype: torch.dtype, pdl: bool = False
) -> Tensor:
    """[num_tokens * top_k, hidden] of `dtype`: what each chosen expert makes of its token.

    x:     [num_tokens, hidden] f16 in the order of `pack_halves`; the experts must have kernels
    """
    num_tokens, top_k = expert_ids.shape
    experts, pairs = num_experts(ffn), num_tokens * top_k
    runs = Runs.empty(pairs, experts, run_length(num_tokens, top_k, experts), x.device)
    sort_tokens(expert_ids, experts, runs, pdl)
    h = torch.empty(pairs, ffn.down.num_cols, dtype=torch.float16, device=x.device)
    expert_gate_up(x, ffn.gate, ffn.up, runs, top_k, experts, h, pdl, ffn.half_factor)
    out = torch.empty(pairs, x.shape[1], dtype=dtype, device=x.device)
    expert_down(h, ffn.down, runs, top_k, experts, out, pdl, ffn.half_factor)
    return out


def grouped_experts(x: Tensor, logits: Tensor, ffn: ExpertFFN) -> tuple[Tensor, Tensor]:
    """The routed experts of a prompt's tokens.

    x:       [num_tokens, hidden] f32 or f16, the layer's normed input
    logits:  [num_tokens, num_experts] f32, the router's; with a shared expert one column more
    returns  (sum over the chosen experts, [num_tokens, hidden] f32; weights as `choose` has them)
    """
    ids, weights = choose(logits[None], ffn)
    if not x.is_cuda:
        return reference_experts(x.float(), ids, weights[:, : ffn.top_k], ffn.gate, ffn.up, ffn.down), weights
    if not have_kernels(ffn):
        return _dequantized(x, ids, weights[:, : ffn.top_k], ffn), weights
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    combine_experts(products(pack_rows(x), ids, ffn, torch.float16), weights, out)
    return out, weights


def _dequantized(x: Tensor, expert_ids: Tensor, weights: Tensor, ffn: ExpertFFN) -> Tensor:
    """One dequantised stack of matrices at a time, for experts that no kernel reads; products of bf16 numbers."""
    flat = expert_ids.flatten().long()
    order = flat.argsort(stable=True)
    counts = torch.zeros(num_experts(ffn), dtype=torch.int32, device=x.device)
    ends = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
    rows = x.index_select(0, order // ffn.top_k).to(torch.bfloat16)
    gate, up = (_grouped(rows, weight, ends).float() for weight in (ffn.gate, ffn.up))
    grouped = _grouped((F.silu(gate) * up).to(torch.bfloat16), ffn.down, ends).float()
    out = torch.empty_like(grouped).index_copy_(0, order, grouped)
    return torch.bmm(weights[:, None, :], out.view(-1, ffn.top_k, out.shape[1]))[:, 0]


def _grouped(rows: Tensor, weight: QuantWeight, ends: Tensor) -> Tensor:
    """Rows sorted by expert, times that expert's matrix; ends: [num_experts] int32, where its rows end."""
    matrices = dequantize.matrix(weight, torch.bfloat16).view(ends.shape[0], -1, weight.num_cols)
    product: Tensor = F.grouped_mm(rows, matrices.transpose(1, 2), offs=ends)
    return product
