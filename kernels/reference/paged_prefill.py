"""kernels/paged_prefill.py in plain torch, sequence after sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.paged_attention import gather_rows
from kernels.rope_store_kv import HeadShape
from kernels.spans import Spans


def paged_prefill(
    q: Tensor, projected: Tensor, kv: tuple[Tensor, Tensor], kv_scales: tuple[Tensor, Tensor] | None, spans: Spans,
    shape: HeadShape, block_size: int, window: int, scale: float, out: Tensor,
) -> None:
    """The kernel's arguments and results, in f32."""
    for first, count, start, slot, _ in spans.sequences.tolist():
        if count:
            rows = slice(first, first + count)
            blocks = spans.block_tables[slot, : -(-(start + count) // block_size)].long()[:, None] * block_size
            key_rows = (blocks + torch.arange(block_size, device=q.device)).flatten()[: start + count]
            attended = _attend(q[rows].float(), kv, kv_scales, key_rows, start, window, scale)
            if shape.is_gated:
                width = shape.num_q_heads * shape.q_stride
                gates = projected[rows, :width].unflatten(1, (shape.num_q_heads, 2, shape.head_dim))
                attended = attended * torch.sigmoid(gates[:, :, 1])
            out[rows] = attended.flatten(1).to(out.dtype)


def _attend(
    q: Tensor, kv: tuple[Tensor, Tensor], kv_scales: tuple[Tensor, Tensor] | None, key_rows: Tensor, start: int,
    window: int, scale: float,
) -> Tensor:
    """q: [num_tokens, num_q_heads, head_dim] f32 -> same."""
    end = start + q.shape[0]
    repeats = q.shape[1] // kv[0].shape[1]
    keys, values = (
        gather_rows(cache, kv_scales and kv_scales[i], key_rows, torch.float32).repeat_interleave(repeats, dim=1)
        for i, cache in enumerate(kv)
    )
    distance = torch.arange(start, end, device=q.device)[:, None] - torch.arange(end, device=q.device)
    mask = distance >= 0
    if window:
        mask &= distance < window
    out = F.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, keys, values)), attn_mask=mask, scale=scale
    )
    return out[0].transpose(0, 1)
