"""The gated delta rule by chunks, as a GPU likes it: batched products of small matrices between two kernels.

Formulas and arguments as kernels/reference/gated_delta_rule.py (chunked_gated_delta_rule). Knows heads; never slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.delta_rule_scan import CHUNK, ChunkTerms, delta_rule_scan
from kernels.reference.gated_delta_rule import chunked_gated_delta_rule
from kernels.unit_lower_inverse import unit_lower_inverse


def chunked_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> Tensor:
    """One sequence through the rule.

    q, k:    [num_tokens, heads, d_k] f32, normalised; q already scaled
    v:       [num_tokens, heads, d_v] f32
    g, beta: [num_tokens, heads] f32
    state:   [heads, d_k, d_v] f32; changed in place
    returns  outputs [num_tokens, heads, d_v]
    """
    num_tokens = q.shape[0]
    q, k, v, g, beta = (_to_chunks(x) for x in (q, k, v, g, beta))
    decay = g.cumsum(-1)                                        # [heads, chunks, 64]
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    pairwise = (decay[..., :, None] - decay[..., None, :]).masked_fill(future, float("-inf")).exp()
    k_beta = k * beta[..., None]
    inverse = unit_lower_inverse((k_beta @ k.mT * pairwise).tril(-1))
    terms = ChunkTerms(
        u=inverse @ (v * beta[..., None]),
        w=inverse @ (k_beta * decay.exp()[..., None]),
        q=q * decay.exp()[..., None],
        k=k * (decay[..., -1:] - decay).exp()[..., None],
        scores=q @ k.mT * pairwise,
        carry=decay[..., -1].exp(),
    )
    return delta_rule_scan(terms, state).flatten(1, 2).transpose(0, 1)[:num_tokens]


def plain_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """`chunked_delta_rule` without kernels."""
    q, k, v, g, beta = (x[None] for x in (q, k, v, g, beta))
    out, new_state = chunked_gated_delta_rule(q, k, v, g, beta, state[None])
    state.copy_(new_state[0])
    return out[0]


def _to_chunks(x: Tensor) -> Tensor:
    """[num_tokens, heads, ...] -> [heads, chunks, 64, ...]; zeros pad: no decay, no write."""
    padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, -x.shape[0] % CHUNK))
    return padded.transpose(0, 1).reshape(x.shape[1], -1, CHUNK, *x.shape[2:]).contiguous()
