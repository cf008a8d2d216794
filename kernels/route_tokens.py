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

NONE = tl.constexpr(-(1 << 31))  # below every number's key
LANES = tl.constexpr(128)  # experts side by side: four a thread of a warp


@triton.jit
def _total(logits_ptr, offs, inside, stride_part, PARTS: tl.constexpr):
    total = tl.load(logits_ptr + offs, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(logits_ptr + part * stride_part + offs, mask=inside, other=0.0)
    return total


@triton.jit
def _flip(bits):
    """Bits of a float <-> an integer that orders as the floats do."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _largest(keys, expert, E: tl.constexpr):
    """(largest key, the lowest expert that has it) of each row, [T] each; keys: [T, LANES] of every LANES experts."""
    best = keys[0]
    for i in tl.static_range(1, len(keys)):
        best = tl.maximum(best, keys[i])
    best = tl.max(best, axis=1)
    number = tl.where(keys[0] == best[:, None], expert, E)
    for i in tl.static_range(1, len(keys)):
        number = tl.minimum(number, tl.where(keys[i] == best[:, None], i * LANES + expert, E))
    return best, tl.min(number, axis=1)


@triton.jit
def choose_rows(
    logits_ptr, stride_part, stride_logits, ids_ptr, weights_ptr, token, is_real, PARTS: tl.constexpr, E: tl.constexpr,
    TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr,
):
    """The choice for rows `token` [T] that are real. Integer maxima, which a warp finds by one instruction."""
    WIDTH: tl.constexpr = TOP_K + 1 if HAS_SHARED else TOP_K
    expert = tl.arange(0, LANES)[None, :]
    row = (token * stride_logits)[:, None]
    keys = ()
    for i in tl.static_range((E + LANES - 1) // LANES):
        inside = is_real[:, None] & (i * LANES + expert < E)
        logits = _total(logits_ptr, row + i * LANES + expert, inside, stride_part, PARTS)
        key = _flip((logits + 0.0).to(tl.int32, bitcast=True))  # one zero only
        keys = keys + (tl.where(i * LANES + expert < E, key, NONE),)
    numbers = tl.zeros(keys[0].shape, tl.int32)
    chosen = tl.full(keys[0].shape, float("-inf"), tl.float32)
    for k in tl.static_range(TOP_K):
        best, winner = _largest(keys, expert, E)
        numbers = tl.where(expert == k, winner[:, None], numbers)
        chosen = tl.where(expert == k, _flip(best).to(tl.float32, bitcast=True)[:, None], chosen)
        rest = ()
        for i in tl.static_range(len(keys)):
            rest = rest + (tl.where(i * LANES + expert == winner[:, None], NONE, keys[i]),)
        keys = rest
    share = tl.exp(chosen - tl.max(chosen, axis=1)[:, None])
    share = share / tl.sum(share, axis=1)[:, None]
    inside = is_real[:, None] & (expert < TOP_K)
    tl.store(ids_ptr + (token * TOP_K)[:, None] + expert, numbers, mask=inside)
    tl.store(weights_ptr + (token * WIDTH)[:, None] + expert, share, mask=inside)
    if HAS_SHARED:
        gate = _total(logits_ptr, token * stride_logits + E, is_real, stride_part, PARTS)
        tl.store(weights_ptr + token * WIDTH + TOP_K, 1.0 / (1.0 + tl.exp(-gate)), mask=is_real)


@triton.jit
def _route_tokens_kernel(
    logits_ptr, stride_part, stride_logits, ids_ptr, weights_ptr, PARTS: tl.constexpr, E: tl.constexpr,
    TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr, PDL: tl.constexpr,
):
    token = tl.program_id(0) + tl.arange(0, 1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    choose_rows(logits_ptr, stride_part, stride_logits, ids_ptr, weights_ptr, token, token >= 0, PARTS, E, TOP_K,
                HAS_SHARED)


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
        TOP_K=top_k, HAS_SHARED=has_shared, PDL=pdl, num_warps=1, **options,
    )
