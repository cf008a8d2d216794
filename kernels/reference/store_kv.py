"""Write the keys and values of one step into the paged pool; in int8, with a scale per token and head."""

from __future__ import annotations

import torch
from torch import Tensor

INT8_MAX, F16_MAX = 127.0, 65504.0

KVScales = tuple[Tensor, Tensor]  # of keys and of values, each [num_slots, num_kv_heads] f16


def quantize_kv(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of each head's row: scale = max |x| / 127 rounded to f16, q = round(x / scale).

    x:       [num_tokens, num_kv_heads, head_dim] f32
    returns  [num_tokens, num_kv_heads, head_dim] int8 and scales [num_tokens, num_kv_heads] f16; a row with NaN or
             infinity gets such a scale, so that the defect stays visible
    """
    scale = (x.abs().amax(dim=-1) / INT8_MAX).to(torch.float16)
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale.float())
    q = (x * inverse[..., None]).round_().clamp_(-INT8_MAX, INT8_MAX).nan_to_num_(nan=0.0)
    return q.to(torch.int8), scale


def dequantize_kv(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """scale * q in `dtype`; q [..., head_dim] int8, scale [...] f16."""
    return q.to(dtype) * scale.to(dtype)[..., None]


def store_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, scales: KVScales | None = None
) -> None:
    """k_cache[slot_mapping] = k, v_cache[slot_mapping] = v, in the pool's type, which f16 saturates.

    k, v:             [num_tokens, num_kv_heads, head_dim]
    k_cache, v_cache: [num_slots, num_kv_heads, head_dim], changed in place
    slot_mapping:     [num_tokens] int64
    scales:           with int8 pools, changed in place
    """
    if scales is None:
        for rows, cache in ((k, k_cache), (v, v_cache)):
            is_half = cache.dtype == torch.float16
            cache.index_copy_(0, slot_mapping, (rows.clamp(-F16_MAX, F16_MAX) if is_half else rows).to(cache.dtype))
        return
    for rows, cache, scale_cache in ((k, k_cache, scales[0]), (v, v_cache, scales[1])):
        q, scale = quantize_kv(rows)
        cache.index_copy_(0, slot_mapping, q)
        scale_cache.index_copy_(0, slot_mapping, scale)
