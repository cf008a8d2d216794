"""The sequential part of the chunked gated delta rule: states carried from chunk to chunk of 64 tokens.

For chunk after chunk R = U - W S, O = Q S + P R, S <- c S + K^T R; one program holds some columns of one head's state.
Bytes moved: w, q, k and p once per share of the columns, u and the outputs once. Accumulation: f32, products of three
bf16 parts each.
Reference:   kernels/reference/gated_delta_rule.py (chunked_gated_delta_rule)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import has_dp4a

CHUNK = 64


@dataclass(frozen=True, slots=True)
class ChunkTerms:
    """What each chunk brings along, all f32 and contiguous, decays applied.

    u:      [heads, chunks, 64, d_v]; w, q, k: [heads, chunks, 64, d_k]
    scores: [heads, chunks, 64, 64]; carry: [heads, chunks]
    """

    u: Tensor
    w: Tensor
    q: Tensor
    k: Tensor
    scores: Tensor
    carry: Tensor


@triton.jit(do_not_specialize=["num_chunks"])  # one compilation for prompts of any length
def _delta_rule_scan_kernel(
    u_ptr, w_ptr, q_ptr, k_ptr, scores_ptr, carry_ptr, state_ptr, out_ptr, num_chunks, D: tl.constexpr,
    BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    tokens = tl.arange(0, CHUNK)[:, None]
    dims = tl.arange(0, D)
    columns = (part * BLOCK_V + tl.arange(0, BLOCK_V))[None, :]
    state_ptrs = state_ptr + head * D * D + dims[:, None] * D + columns
    state = tl.load(state_ptrs)
    for i in tl.range(0, num_chunks, num_stages=1):
        chunk = head * num_chunks + i
        keyed = chunk * CHUNK * D + tokens * D + dims[None, :]
        valued = chunk * CHUNK * D + tokens * D + columns
        residual = tl.load(u_ptr + valued) - tl.dot(tl.load(w_ptr + keyed), state, input_precision=PRECISION)
        scores = tl.load(scores_ptr + chunk * CHUNK * CHUNK + tokens * CHUNK + tl.arange(0, CHUNK)[None, :])
        out = tl.dot(tl.load(q_ptr + keyed), state, input_precision=PRECISION)
        out += tl.dot(scores, residual, input_precision=PRECISION)
        tl.store(out_ptr + valued, out)
        k = tl.load(k_ptr + keyed)
        state = tl.load(carry_ptr + chunk) * state + tl.dot(tl.trans(k), residual, input_precision=PRECISION)
    tl.store(state_ptrs, state)


def delta_rule_scan(terms: ChunkTerms, state: Tensor, block_v: int = 32, num_warps: int = 4) -> Tensor:
    """Outputs [heads, chunks, 64, d_v] f32.

    state:   [heads, d, d] f32, d = d_k = d_v a power of two and at least 16, contiguous; changed in place
    block_v: columns of a head per program
    """
    out = torch.empty_like(terms.u)
    heads, num_chunks, _, d = terms.u.shape
    block_v = min(block_v, d)
    _delta_rule_scan_kernel[(d // block_v, heads)](
        terms.u, terms.w, terms.q, terms.k, terms.scores, terms.carry, state, out, num_chunks, D=d, BLOCK_V=block_v,
        CHUNK=CHUNK, PRECISION="bf16x3" if has_dp4a() else "ieee", num_warps=num_warps,
    )
    return out
