"""Gated delta rule (arXiv:2412.06464): a decaying key-value memory corrected towards each new value.

Per value head with state S [d_k, d_v]:
    S <- exp(g) S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q
`recurrent` is that, token by token. `chunked` computes the same 64 tokens at a time (the WY form of
arXiv:2406.06484 with decay), which a prefill needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_SIZE = 64  # tokens; the inverse of a 64 x 64 unit triangle stays exact enough in float32
L2_EPS = 1e-6

Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def l2_normalize(x: Tensor) -> Tensor:
    """x * rsqrt(sum(x^2) + 1e-6) over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule one token at a time.

    q, k:    [num_seqs, query_len, heads, d_k] f32, normalised; q already scaled by d_k^-1/2
    v:       [num_seqs, query_len, heads, d_v] f32
    g, beta: [num_seqs, query_len, heads] f32, log-decay (<= 0) and write strength
    state:   [num_seqs, heads, d_k, d_v] f32 before the first token; not changed
    returns  outputs [num_seqs, query_len, heads, d_v] f32, and the state after the last token
    """
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        recalled = torch.einsum("shkv,shk->shv", state, k[:, t])
        error = beta[:, t, :, None] * (v[:, t] - recalled)
        state = state + k[:, t, :, :, None] * error[:, :, None, :]
        outputs.append(torch.einsum("shkv,shk->shv", state, q[:, t]))
    return torch.stack(outputs, dim=1), state


def chunked_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk_size: int = CHUNK_SIZE
) -> tuple[Tensor, Tensor]:
    """The same rule by chunks; arguments and results as `recurrent_gated_delta_rule`.

    With G = cumsum(g), D_ij = exp(G_i - G_j) for j <= i else 0, A = strictly lower part of (beta k k^T) * D:
    U = (I + A)^-1 (beta v), W = (I + A)^-1 (beta exp(G) k); then chunk after chunk R = U - W S,
    o = exp(G) q S + ((q k^T) * D) R, S <- exp(G_last) S + (exp(G_last - G) k)^T R.
    """
    query_len = q.shape[1]
    chunk = min(chunk_size, query_len)
    q, k, v, g, beta = (_to_chunks(x, chunk) for x in (q, k, v, g, beta))
    decay = g.cumsum(-1)                                        # [num_seqs, heads, chunks, chunk]
    pairwise = decay[..., :, None] - decay[..., None, :]
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    pairwise = pairwise.masked_fill(future, float("-inf")).exp()
    k_beta = k * beta[..., None]
    lower = (k_beta @ k.transpose(-1, -2) * pairwise).tril(-1)
    rhs = torch.cat((v * beta[..., None], k_beta * decay.exp()[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True)
    u, w = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    scores = q @ k.transpose(-1, -2) * pairwise
    q_decayed = q * decay.exp()[..., None]
    k_to_end = k * (decay[..., -1:] - decay).exp()[..., None]
    carry = decay[..., -1].exp()[..., None, None]
    outputs = torch.empty_like(v)
    for i in range(q.shape[2]):
        residual = u[:, :, i] - w[:, :, i] @ state
        outputs[:, :, i] = q_decayed[:, :, i] @ state + scores[:, :, i] @ residual
        state = carry[:, :, i] * state + k_to_end[:, :, i].transpose(-1, -2) @ residual
    return outputs.flatten(2, 3).transpose(1, 2)[:, :query_len], state


def _to_chunks(x: Tensor, chunk: int) -> Tensor:
    """[num_seqs, query_len, heads, ...] -> [num_seqs, heads, chunks, chunk, ...]; zeros pad: no decay, no write."""
    missing = -x.shape[1] % chunk
    padding = (0, 0) * (x.dim() - 2) + (0, missing)
    return F.pad(x, padding).transpose(1, 2).unflatten(2, (-1, chunk))


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_slots: Tensor,
    query_lens: Sequence[int],
    prefill_rule: Rule | None = None,
) -> Tensor:
    """The rule over one step's rows, sequences of any lengths end to end, states carried in a pool.

    q, k:        [num_tokens, heads, d_k] f32, normalised; q already scaled by d_k^-1/2
    v:           [num_tokens, heads, d_v] f32
    g, beta:     [num_tokens, heads] f32
    state:       [num_slots, heads, d_k, d_v] f32; rows state_slots changed in place
    state_slots: [num_seqs] int64
    prefill_rule: for sequences of several rows, instead of `chunked_gated_delta_rule`
    returns      [num_tokens, heads, d_v] f32
    """
    prefill_rule = prefill_rule or chunked_gated_delta_rule
    inputs = (q, k, v, g, beta)
    if len(set(query_lens)) == 1:
        return _equal_lengths(inputs, state, state_slots, query_lens[0], prefill_rule)
    out = torch.empty_like(v)
    is_single = torch.tensor([n == 1 for n in query_lens], device=q.device)
    starts = torch.tensor([0, *query_lens[:-1]], device=q.device).cumsum(0)
    rows = starts[is_single]
    if rows.numel():
        out[rows] = _equal_lengths([x[rows] for x in inputs], state, state_slots[is_single], 1, prefill_rule)
    start = 0
    for seq, query_len in enumerate(query_lens):
        span = slice(start, start + query_len)
        start += query_len
        if query_len > 1:
            rows = [x[span] for x in inputs]
            out[span] = _equal_lengths(rows, state, state_slots[seq : seq + 1], query_len, prefill_rule)
    return out


def _equal_lengths(
    inputs: Sequence[Tensor], state: Tensor, state_slots: Tensor, query_len: int, prefill_rule: Rule
) -> Tensor:
    q, k, v, g, beta = (x.unflatten(0, (-1, query_len)) for x in inputs)
    rule = recurrent_gated_delta_rule if query_len == 1 else prefill_rule
    out, state[state_slots] = rule(q, k, v, g, beta, state[state_slots])
    return out.flatten(0, 1)
