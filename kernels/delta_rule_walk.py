"""The sequential part of the chunked gated delta rule: states carried from chunk to chunk, for all sequences of a step.

For chunk after chunk R = U - W S, O = exp(G) Q S + P R, S <- exp(G_last) S + K^T (exp(G_last - G) R); one program holds
some columns of one head's state. States come from and go to the pool, updates that decode steps held back
(kernels/held_updates.py) first; a sequence that begins has none of either.
Bytes moved: w, q, k and p once per share of the columns, u and the outputs once. Accumulation: f32 (f16 operands).
Reference:   kernels/reference/delta_rule_chunks.py
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs
from kernels.held_updates import COLUMNS, held_marks, with_updates
from kernels.launch import has_dp4a, has_large_shared_memory
from kernels.spans import Spans


@triton.jit(do_not_specialize=["num_chunks"])
def _delta_rule_walk_kernel(
    heads_ptr, u_ptr, w_ptr, scores_ptr, decay_ptr, sequences_ptr, num_chunks, state_ptr, held_ptr, out_ptr,
    HK: tl.constexpr, HV: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    HELD: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
):
    part = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    num_tokens = tl.load(sequences_ptr + 5 * sequence + 1)
    if num_tokens > 0:
        HALF: tl.constexpr = tl.float32 if EXACT else tl.float16
        first_row = tl.load(sequences_ptr + 5 * sequence)
        start = tl.load(sequences_ptr + 5 * sequence + 2)
        slot = tl.load(sequences_ptr + 5 * sequence + 3).to(tl.int64)
        first_chunk = tl.load(sequences_ptr + 5 * sequence + 4)
        places = tl.arange(0, 64)
        dims = tl.arange(0, WIDTH)
        columns = part * COLUMNS + tl.arange(0, COLUMNS)
        state_ptrs = state_ptr + (slot * HV + head) * D * D + dims[:, None] * D + columns[None, :]
        in_state = (dims < D)[:, None] & (columns < D)[None, :]
        state = tl.load(state_ptrs, mask=in_state, other=0.0)
        k_head = head % HK
        held_ptr += slot * (HK + HV) * HELD * D
        own_ptr = held_ptr + (HK + head) * HELD * D + part * COLUMNS
        if start == 0:
            state = tl.zeros_like(state)
        else:
            count, _, total = held_marks(own_ptr, D, HELD)
            own = tl.arange(0, COLUMNS)
            state = with_updates(state, total, count, held_ptr + k_head * HELD * D, own_ptr, dims, own, D, HELD)
        for i in tl.range(0, tl.cdiv(num_tokens, 64), num_stages=STAGES):
            base = head.to(tl.int64) * num_chunks + first_chunk + i
            token = i * 64 + places
            real = (token < num_tokens)[:, None]
            here = real & (dims < D)[None, :]
            row = (first_row + token).to(tl.int64)[:, None]
            row_ptrs = heads_ptr + row * ((2 * HK + HV) * D) + dims[None, :]
            keyed = base * 64 * WIDTH + places[:, None] * WIDTH
            w = tl.load(w_ptr + keyed + dims[None, :]).to(HALF)
            q = tl.load(row_ptrs + k_head * D, mask=here, other=0.0).to(HALF)
            k = tl.load(row_ptrs + (HK + k_head) * D, mask=here, other=0.0).to(HALF)
            scores = tl.load(scores_ptr + base * 64 * 64 + places[:, None] * 64 + places[None, :]).to(HALF)
            decay = tl.load(decay_ptr + base * 64 + places)
            final = tl.load(decay_ptr + base * 64 + 63)
            small = state.to(HALF)
            residual = tl.load(u_ptr + keyed + columns[None, :]).to(tl.float32) - tl.dot(w, small)
            out = tl.dot(q, small) * tl.exp(decay)[:, None]
            out = tl.dot(scores, residual.to(HALF), out)
            tl.store(out_ptr + row * (HV * D) + head * D + columns[None, :], out.to(out_ptr.dtype.element_ty),
                     mask=real & (columns < D)[None, :])
            late = (residual * tl.exp(final - decay)[:, None]).to(HALF)
            state = tl.dot(tl.trans(k), late, state * tl.exp(final))
        tl.store(state_ptrs, state, mask=in_state)
        tl.store(own_ptr + (HELD - 1) * D + tl.arange(0, HELD), tl.zeros((HELD,), tl.float32))


def delta_rule_walk(
    inputs: DeltaRuleInputs, terms: ChunkTerms, spans: Spans, state: Tensor, held: Tensor, out: Tensor,
    num_warps: int = 4, num_stages: int | None = None,
) -> None:
    """Outputs and states of every sequence.

    state:   [num_slots, num_v_heads, d, d] f32, contiguous; the sequences' slots change, zero before position 0
    held:    [num_slots, num_k_heads + num_v_heads, HELD, d] f32, updates that `state` lacks; none afterwards
    out:     [num_tokens, num_v_heads * d] f16, written
    """
    d, heads = inputs.d, inputs.num_v_heads
    stages = num_stages or (2 if has_large_shared_memory(state) else 1)
    _delta_rule_walk_kernel[(triton.cdiv(d, COLUMNS), heads, spans.sequences.shape[0])](
        inputs.heads, terms.u, terms.w, terms.scores, terms.decay, spans.sequences, spans.chunks.shape[0], state, held,
        out, HK=inputs.num_k_heads, HV=heads, D=d, WIDTH=terms.u.shape[3], COLUMNS=COLUMNS, HELD=held.shape[2],
        EXACT=not has_dp4a(), STAGES=stages, num_warps=num_warps,
    )
