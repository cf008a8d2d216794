"""Attention of one new token per sequence over a paged cache, with output gates, in plain float32."""

from __future__ import annotations

import torch
from torch import Tensor


def gathered(cache: Tensor, scales: Tensor | None, block_table: Tensor, context_len: int, block_size: int) -> Tensor:
    """[context_len, num_kv_heads, head_dim] f32 of one sequence."""
    token = torch.arange(context_len, device=cache.device)
    rows = block_table.long()[token // block_size] * block_size + token % block_size
    values = cache[rows].float()
    return values if scales is None else values * scales[rows].float()[..., None]


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, scales: tuple[Tensor, Tensor] | None, block_tables: Tensor,
    context_lens: Tensor, block_size: int, window: int, gate: Tensor | None, scale: float | None = None,
) -> Tensor:
    """[num_seqs, num_q_heads * head_dim] f32; q [num_seqs, num_q_heads, head_dim], gate the same shape or None."""
    k_scale, v_scale = scales or (None, None)
    rows = []
    for query, table, length in zip(q, block_tables, context_lens.tolist(), strict=True):
        first = max(0, length - window) if window else 0
        k = gathered(k_cache, k_scale, table, length, block_size)[first:]
        v = gathered(v_cache, v_scale, table, length, block_size)[first:]
        group = query.shape[0] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("hd,thd->ht", query, k) * (query.shape[-1] ** -0.5 if scale is None else scale)
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(-1), v))
    out = torch.stack(rows)
    return (out if gate is None else out * torch.sigmoid(gate)).flatten(1)
