"""What 64 tokens of a prompt need of one another under the gated delta rule: everything that no state takes part in.

One program a chunk and value head. With G = cumsum(g), D_ij = exp(G_i - G_j) for j <= i, A = the strictly lower part of
(beta k k^T) * D and T = (I + A)^-1: u = T (beta v), w = T (beta exp(G) k), scores = (q k^T) * D.
T by halves: the inverse X of blocks on the diagonal becomes that of blocks twice as large as X - X C X, C being the
corners of A between them. No powers of A, which would cancel.
Bytes moved: q, k, v once per value head (q and k mostly from L2), u, w and scores written. Accumulation: f32.
Reference:   kernels/reference/delta_rule_chunks.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import has_dp4a
from kernels.spans import CHUNK, Spans

MIN_WIDTH = 32  # of a tile: Triton 3.6 puts products over 16 columns beyond the shared memory that it asks for


@dataclass(frozen=True, slots=True)
class DeltaRuleInputs:
    """What the rule's kernels read of a layer.

    heads:       [num_tokens, 2 * num_k_heads + num_v_heads, d] f16: q (normalised, scaled), k (normalised), v; value
                 head h goes with key head h % num_k_heads
    alpha, beta: [num_tokens, num_v_heads] f32, raw projections, rows at any stride
    a, dt_bias:  [num_v_heads] f32: log-decay = a softplus(alpha + dt_bias)
    """

    heads: Tensor
    alpha: Tensor
    beta: Tensor
    a: Tensor
    dt_bias: Tensor
    num_k_heads: int

    @property
    def num_v_heads(self) -> int:
        return self.a.shape[0]

    @property
    def d(self) -> int:
        return self.heads.shape[2]


@dataclass(frozen=True, slots=True)
class ChunkTerms:
    """By value head and chunk, for delta_rule_scan.

    u, w:    [num_v_heads, num_chunks, 64, max(d, MIN_WIDTH)] f16, zeros from column d on
    scores:  [num_v_heads, num_chunks, 64, 64] f16
    decay:   [num_v_heads, num_chunks, 64] f32, G
    """

    u: Tensor
    w: Tensor
    scores: Tensor
    decay: Tensor

    @classmethod
    def empty(cls, inputs: DeltaRuleInputs, num_chunks: int) -> ChunkTerms:
        shape, device = (inputs.num_v_heads, num_chunks, CHUNK), inputs.heads.device
        dtype, width = inputs.heads.dtype, max(inputs.d, MIN_WIDTH)
        return cls(
            torch.empty(*shape, width, dtype=dtype, device=device),
            torch.empty(*shape, width, dtype=dtype, device=device),
            torch.empty(*shape, CHUNK, dtype=dtype, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )


@triton.jit
def _triangle_inverse(a, PRECISION: tl.constexpr):
    """(I + a)^-1 of a [64, 64] f32 that is zero on and above the diagonal."""
    rows = tl.arange(0, 64)[:, None]
    columns = tl.arange(0, 64)[None, :]
    x = tl.where(rows == columns, 1.0, tl.where(rows // 2 == columns // 2, -a, 0.0))
    for level in tl.static_range(1, 6):
        corner = (rows >> (level + 1) == columns >> (level + 1)) & (rows >> level != columns >> level)
        x -= tl.dot(x, tl.dot(tl.where(corner, a, 0.0), x, input_precision=PRECISION), input_precision=PRECISION)
    return x


@triton.jit(do_not_specialize=["stride_alpha", "num_chunks"])
def _delta_rule_chunks_kernel(
    heads_ptr, alpha_ptr, beta_ptr, stride_alpha, a_ptr, dt_ptr, sequences_ptr, chunks_ptr, num_chunks, u_ptr, w_ptr,
    scores_ptr, decay_ptr, HK: tl.constexpr, HV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, EXACT: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    sequence = tl.load(chunks_ptr + 2 * chunk)
    if sequence >= 0:
        HALF: tl.constexpr = tl.float32 if EXACT else tl.float16
        token = tl.load(chunks_ptr + 2 * chunk + 1) + tl.arange(0, 64)
        row = (tl.load(sequences_ptr + 5 * sequence) + token).to(tl.int64)
        real = token < tl.load(sequences_ptr + 5 * sequence + 1)
        dims = tl.arange(0, WIDTH)
        here = real[:, None] & (dims < D)[None, :]
        row_ptrs = heads_ptr + row[:, None] * ((2 * HK + HV) * D) + dims[None, :]
        k_head = head % HK
        q = tl.load(row_ptrs + k_head * D, mask=here, other=0.0).to(HALF)
        k = tl.load(row_ptrs + (HK + k_head) * D, mask=here, other=0.0).to(HALF)
        alpha = tl.load(alpha_ptr + row * stride_alpha + head, mask=real, other=0.0) + tl.load(dt_ptr + head)
        beta = tl.load(beta_ptr + row * stride_alpha + head, mask=real, other=0.0)
        softplus = tl.where(alpha > 20.0, alpha, tl.log(1.0 + tl.exp(tl.minimum(alpha, 20.0))))
        g = tl.where(real, tl.load(a_ptr + head) * softplus, 0.0)
        beta = tl.where(real, 1.0 / (1.0 + tl.exp(-beta)), 0.0)
        decay = tl.cumsum(g, axis=0)
        places = tl.arange(0, 64)
        earlier = places[:, None] - places[None, :]
        pairwise = tl.exp(tl.where(earlier >= 0, decay[:, None] - decay[None, :], float("-inf")))
        base = head.to(tl.int64) * num_chunks + chunk
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * pairwise
        square = base * 64 * 64 + places[:, None] * 64 + places[None, :]
        tl.store(scores_ptr + square, scores.to(scores_ptr.dtype.element_ty))
        tl.store(decay_ptr + base * 64 + places, decay)
        lower = tl.dot(k, tl.trans(k), input_precision=PRECISION) * pairwise * beta[:, None]
        inverse = _triangle_inverse(tl.where(earlier > 0, lower, 0.0), PRECISION).to(HALF)
        keyed = base * 64 * WIDTH + places[:, None] * WIDTH + dims[None, :]
        v = tl.load(row_ptrs + (2 * HK + head) * D, mask=here, other=0.0).to(tl.float32)
        u = tl.dot(inverse, (v * beta[:, None]).to(HALF), input_precision=PRECISION)
        tl.store(u_ptr + keyed, u.to(u_ptr.dtype.element_ty))
        w = tl.dot(inverse, (k.to(tl.float32) * (beta * tl.exp(decay))[:, None]).to(HALF), input_precision=PRECISION)
        tl.store(w_ptr + keyed, w.to(w_ptr.dtype.element_ty))


def delta_rule_chunks(inputs: DeltaRuleInputs, spans: Spans, terms: ChunkTerms) -> None:
    """Write the terms of every chunk that spans.chunks names."""
    num_chunks = spans.chunks.shape[0]
    precision = "bf16x3" if has_dp4a() else "ieee"
    _delta_rule_chunks_kernel[(inputs.num_v_heads, num_chunks)](
        inputs.heads, inputs.alpha, inputs.beta, inputs.alpha.stride(0), inputs.a, inputs.dt_bias, spans.sequences,
        spans.chunks, num_chunks, terms.u, terms.w, terms.scores, terms.decay, HK=inputs.num_k_heads,
        HV=inputs.num_v_heads, D=inputs.d, WIDTH=terms.u.shape[3], PRECISION=precision, EXACT=not has_dp4a(),
        num_warps=4,
    )
