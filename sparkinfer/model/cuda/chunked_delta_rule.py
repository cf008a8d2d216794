"""The gated delta rule by chunks, as a GPU likes it: batched products of small matrices, no triangular solver.

Formulas and arguments as kernels/reference/gated_delta_rule.py (chunked_gated_delta_rule). Knows heads; never slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64   # tokens
BLOCK = 16   # rows inverted one after another; larger triangles are put together from such


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower A [..., 64, 64], by forward substitution in blocks of 16, then block by block.

    [[P, 0], [C, Q]]^-1 = [[P^-1, 0], [-Q^-1 C P^-1, Q^-1]]
    """
    blocks = torch.stack([lower[..., i : i + BLOCK, i : i + BLOCK] for i in range(0, CHUNK, BLOCK)], dim=-3)
    inverse = -blocks
    for i in range(1, BLOCK):
        inverse[..., i, :i] += (inverse[..., i : i + 1, :i] @ inverse[..., :i, :i])[..., 0, :]
    inverse = inverse + torch.eye(BLOCK, device=lower.device)
    size = BLOCK
    while size < CHUNK:
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        starts = range(0, CHUNK, 2 * size)
        below = torch.stack([lower[..., i + size : i + 2 * size, i : i + size] for i in starts], dim=-3)
        corner = -(second @ below @ first)
        top = torch.cat((first, torch.zeros_like(first)), dim=-1)
        inverse = torch.cat((top, torch.cat((corner, second), dim=-1)), dim=-2)
        size *= 2
    return inverse[..., 0, :, :]


def chunked_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One sequence through the rule.

    q, k:    [num_tokens, heads, d_k] f32, normalised; q already scaled
    v:       [num_tokens, heads, d_v] f32
    g, beta: [num_tokens, heads] f32
    state:   [heads, d_k, d_v] f32; not changed
    returns  outputs [num_tokens, heads, d_v] and the state after the last token
    """
    num_tokens = q.shape[0]
    q, k, v, g, beta = (_to_chunks(x) for x in (q, k, v, g, beta))
    decay = g.cumsum(-1)                                        # [heads, chunks, 64]
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    pairwise = (decay[..., :, None] - decay[..., None, :]).masked_fill(future, float("-inf")).exp()
    k_beta = k * beta[..., None]
    inverse = unit_lower_inverse((k_beta @ k.mT * pairwise).tril(-1))
    u = inverse @ (v * beta[..., None])
    w = inverse @ (k_beta * decay.exp()[..., None])
    scores = q @ k.mT * pairwise
    q = q * decay.exp()[..., None]
    to_end = (k * (decay[..., -1:] - decay).exp()[..., None]).mT
    carry = decay[..., -1].exp()[..., None, None]
    outputs = torch.empty_like(v)
    for i in range(q.shape[1]):
        residual = torch.baddbmm(u[:, i], w[:, i], state, alpha=-1)
        outputs[:, i] = torch.baddbmm(q[:, i] @ state, scores[:, i], residual)
        state = torch.baddbmm(carry[:, i] * state, to_end[:, i], residual)
    return outputs.flatten(1, 2).transpose(0, 1)[:num_tokens], state


def _to_chunks(x: Tensor) -> Tensor:
    """[num_tokens, heads, ...] -> [heads, chunks, 64, ...]; zeros pad: no decay, no write."""
    padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, -x.shape[0] % CHUNK))
    return padded.transpose(0, 1).reshape(x.shape[1], -1, CHUNK, *x.shape[2:])
