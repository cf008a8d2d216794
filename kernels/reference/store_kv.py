"""Write the keys and values of one step into the paged pool."""

from __future__ import annotations

from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """k_cache[slot_mapping] = k, v_cache[slot_mapping] = v, in the pool's type.

    k, v:             [num_tokens, num_kv_heads, head_dim]
    k_cache, v_cache: [num_slots, num_kv_heads, head_dim], changed in place
    slot_mapping:     [num_tokens] int64
    """
    k_cache.index_copy_(0, slot_mapping, k.to(k_cache.dtype))
    v_cache.index_copy_(0, slot_mapping, v.to(v_cache.dtype))
