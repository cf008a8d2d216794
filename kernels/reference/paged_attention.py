"""Causal attention of one step's rows over the paged KV pool, any mixture of prefill chunks and decode rows.

`attention_plan` works out once per step which rows of the pool each sequence reads; `attend` uses it in every layer.
Sequences with equally many new tokens and contexts of similar length share one padded matmul, so a decode-only step
is a handful of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.store_kv import KVScales, dequantize_kv

# Above this many new tokens a sequence gets a group of its own, so that no prefill is padded to another's context.
MAX_GROUPED_QUERY_LEN = 16

# Contexts up to this share a group; longer ones only within the same power of two, so that padding at most doubles.
SHORT_CONTEXT = 255


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences of one step with the same number of new tokens and similar numbers of keys."""

    query_len: int
    num_seqs: int
    query_rows: Tensor | None  # [num_seqs * query_len] int64, rows of the step; None when the group is the whole step
    key_slots: Tensor          # [num_seqs * max_keys] int64, rows of the pool, padded with a valid row
    mask: Tensor | None        # [num_seqs, 1, query_len, max_keys] bool; None when every key may be read
    is_causal: bool            # square and unpadded: the plain triangle


def attention_plan(
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    sliding_window: int | None = None,
) -> list[AttentionGroup]:
    """Group the sequences of one step and list the pool rows that each group reads.

    block_tables:   [num_seqs, max_blocks] int32 or int64
    query_lens:     new tokens of each sequence, whose rows lie end to end
    context_lens:   tokens of each sequence after the step; the new ones are the last
    sliding_window: query i reads keys j with 0 <= i - j < sliding_window; None reads all before it
    """
    row_starts = [0]
    for query_len in query_lens:
        row_starts.append(row_starts[-1] + query_len)
    members: dict[tuple[int, int], list[int]] = {}
    for seq, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
        num_keys = context_len if sliding_window is None else min(context_len, sliding_window + query_len - 1)
        is_grouped = query_len <= MAX_GROUPED_QUERY_LEN
        key = (query_len, (num_keys | SHORT_CONTEXT).bit_length() if is_grouped else -1 - seq)
        members.setdefault(key, []).append(seq)
    return [
        _group(seqs, query_len, row_starts, block_tables, context_lens, block_size, sliding_window, len(members) == 1)
        for (query_len, _), seqs in members.items()
    ]


def _group(
    seqs: list[int],
    query_len: int,
    row_starts: list[int],
    block_tables: Tensor,
    context_lens: Sequence[int],
    block_size: int,
    sliding_window: int | None,
    is_whole_step: bool,
) -> AttentionGroup:
    device = block_tables.device
    ends = [context_lens[seq] for seq in seqs]
    reach = max(ends) if sliding_window is None else sliding_window + query_len - 1
    starts = [max(end - reach, 0) for end in ends]
    max_keys = max(end - start for start, end in zip(starts, ends, strict=True))
    start = torch.tensor(starts, device=device)[:, None]
    end = torch.tensor(ends, device=device)[:, None]
    key_positions = start + torch.arange(max_keys, device=device)  # [num_seqs, max_keys]
    readable = torch.minimum(key_positions, end - 1)
    tables = block_tables if is_whole_step else block_tables[torch.tensor(seqs, device=device)]
    key_slots = tables.gather(1, readable // block_size).long() * block_size + readable % block_size
    query_rows = None
    if not is_whole_step:
        first_rows = torch.tensor([row_starts[seq] for seq in seqs], device=device)
        query_rows = (first_rows[:, None] + torch.arange(query_len, device=device)).flatten()
    is_full = all(e - s == max_keys for s, e in zip(starts, ends, strict=True))
    is_windowed = sliding_window is not None and max_keys > sliding_window
    is_causal = is_full and not is_windowed and query_len == max_keys
    mask = None
    if not is_causal and not (is_full and query_len == 1):
        query_positions = end - query_len + torch.arange(query_len, device=device)  # [num_seqs, query_len]
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        mask = distance >= 0 if sliding_window is None else (distance >= 0) & (distance < sliding_window)
        mask = mask[:, None]
    return AttentionGroup(query_len, len(seqs), query_rows, key_slots.flatten(), mask, is_causal and query_len > 1)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: Sequence[AttentionGroup],
    scale: float,
    kv_scales: KVScales | None = None,
) -> Tensor:
    """softmax(scale * q k^T + mask) v for every row of the step; keys and values must already be in the pool.

    q:                [num_tokens, num_q_heads, head_dim] f32
    k_cache, v_cache: [num_slots, num_kv_heads, head_dim]; query head h reads kv head h // (num_q_heads // num_kv_heads)
    kv_scales:        with int8 pools
    returns           [num_tokens, num_q_heads, head_dim] f32

    Rows of the pool that no sequence of the step wrote are never read, so what lies there (NaN too) does not matter.
    """
    out = None
    for group in plan:
        rows = q if group.query_rows is None else q.index_select(0, group.query_rows)
        keys = gather_rows(k_cache, kv_scales and kv_scales[0], group.key_slots, q.dtype)
        values = gather_rows(v_cache, kv_scales and kv_scales[1], group.key_slots, q.dtype)
        attended = _attend_group(rows, keys, values, group, scale)
        if group.query_rows is None:
            return attended
        out = torch.empty_like(q) if out is None else out
        out.index_copy_(0, group.query_rows, attended)
    return q if out is None else out


def gather_rows(cache: Tensor, scale: Tensor | None, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `slots` of a pool, dequantised: [num_rows, num_kv_heads, head_dim] in `dtype`."""
    rows = cache.index_select(0, slots)
    return rows.to(dtype) if scale is None else dequantize_kv(rows, scale.index_select(0, slots), dtype)


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, group: AttentionGroup, scale: float) -> Tensor:
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    keys = keys.view(group.num_seqs, -1, num_kv_heads, head_dim).transpose(1, 2)
    values = values.view(group.num_seqs, -1, num_kv_heads, head_dim).transpose(1, 2)
    if group.query_len == 1:
        # The queries that share a kv head stand in for several query rows: no key is repeated.
        q = q.view(group.num_seqs, num_kv_heads, -1, head_dim)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask, scale=scale)
        return out.reshape(num_rows, num_q_heads, head_dim)
    q = q.view(group.num_seqs, group.query_len, num_q_heads, head_dim).transpose(1, 2)
    has_shared_keys = num_q_heads != num_kv_heads
    out = F.scaled_dot_product_attention(
        q, keys, values, attn_mask=group.mask, is_causal=group.is_causal, scale=scale, enable_gqa=has_shared_keys
    )
    return out.transpose(1, 2).reshape(num_rows, num_q_heads, head_dim)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    scale: float,
    block_size: int,
    sliding_window: int | None = None,
) -> Tensor:
    """`attention_plan` and `attend` in one call: the whole specification of one layer's attention.

    q:       [num_tokens, num_q_heads, head_dim] f32
    returns  [num_tokens, num_q_heads, head_dim] f32
    """
    plan = attention_plan(block_tables, query_lens, context_lens, block_size, sliding_window)
    return attend(q, k_cache, v_cache, plan, scale)
