"""The choice of experts: the top_k largest of a row of logits, and their weights.

Weights: softmax over the chosen logits; a shared expert's is the sigmoid of its gate's logit, the row's last.
One program of one warp per token. Bytes moved: the logits once.
Reference:   kernels/reference/quant_moe.py (quant_route)
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _total(logits_ptr, offs, inside, stride_part, PARTS: tl.constexpr):
    total = tl.load(logits_ptr + offs, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(logits_ptr + part * stride_part + offs, mask=inside, other=0.0)
    return total


@triton.jit
def _route_tokens_kernel(
    logits_ptr, stride_part, stride_logits, ids_ptr, weights_ptr, PARTS: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, HAS_SHARED: tl.constexpr, PDL: tl.constexpr,
):
    m = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    logits_ptr += m * stride_logits
    WIDTH: tl.constexpr = TOP_K + 1 if HAS_SHARED else TOP_K
    expert = tl.arange(0, BLOCK)
    logits = _total(logits_ptr, expert, expert < E, stride_part, PARTS)
    logits = tl.where(expert < E, logits, float("-inf"))
    slot = tl.arange(0, SLOTS)
    chosen = tl.full((SLOTS,), float("-inf"), tl.float32)
    ids = tl.zeros((SLOTS,), tl.int32)
    for k in tl.static_range(TOP_K):
        best = tl.max(logits, axis=0)
        winner = tl.min(tl.where(logits == best, expert, E - 1), axis=0)  # of NaN: some expert
        chosen = tl.where(slot == k, best, chosen)
        ids = tl.where(slot == k, winner, ids)
        logits = tl.where(expert == winner, float("-inf"), logits)
    share = tl.exp(chosen - tl.max(chosen, axis=0))
    share = share / tl.sum(share, axis=0)
    tl.store(ids_ptr + m * TOP_K + slot, ids, mask=slot < TOP_K)
    tl.store(weights_ptr + m * WIDTH + slot, share, mask=slot < TOP_K)
    if HAS_SHARED:
        gate = _total(logits_ptr, E + slot * 0, slot == 0, stride_part, PARTS)
        tl.store(weights_ptr + m * WIDTH + TOP_K + slot, 1.0 / (1.0 + tl.exp(-gate)), mask=slot == 0)


def route_tokens(logits: Tensor, expert_ids: Tensor, weights: Tensor, pdl: bool = False) -> None:
    """Choose.

    logits:      [num_parts, num_tokens, num_experts] f32, to be added up part by part; one column more (the shared
                 expert's gate) where `weights` has one
    expert_ids:  [num_tokens, top_k] int32, written: falling weight, the lower number among equals
    weights:     [num_tokens, top_k] or [num_tokens, top_k + 1] f32, written
    """
    num_tokens, top_k = expert_ids.shape
    has_shared = weights.shape[1] > top_k
    num_experts = logits.shape[2] - has_shared
    options = {"launch_pdl": True} if pdl else {}
    _route_tokens_kernel[(num_tokens,)](
        logits, logits.stride(0), logits.stride(1), expert_ids, weights, PARTS=logits.shape[0], E=num_experts,
        BLOCK=max(32, triton.next_power_of_2(num_experts)), TOP_K=top_k, SLOTS=triton.next_power_of_2(top_k),
        HAS_SHARED=has_shared, PDL=pdl, num_warps=1, **options,
    )
