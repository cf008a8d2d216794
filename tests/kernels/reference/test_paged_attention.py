"""The paged form against dense attention written out key by key."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference.paged_attention import attention_plan, paged_attention
from kernels.reference.store_kv import store_kv

query_lens_of = st.just(1) | st.integers(1, 40)
cached_lens_of = st.integers(0, 50) | st.integers(240, 270)
sequence_shapes = st.lists(st.tuples(query_lens_of, cached_lens_of), min_size=1, max_size=6)


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, sliding_window: int | None
) -> torch.Tensor:
    """One sequence, row by row: q [query_len, heads, head_dim], k and v [context_len, kv_heads, head_dim]."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = torch.empty_like(q)
    for row in range(len(q)):
        end = len(k) - len(q) + row + 1
        start = 0 if sliding_window is None else max(0, end - sliding_window)
        scores = torch.einsum("hd,khd->hk", q[row], k[start:end]) * scale
        out[row] = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), v[start:end])
    return out


@settings(max_examples=60, deadline=None)
@given(
    shapes=sequence_shapes,
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    block_size=st.sampled_from([1, 4, 16]),
    sliding_window=st.sampled_from([None, 1, 5, 24]),
    seed=st.integers(0, 1000),
)
def test_equals_dense_attention(
    shapes: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    sliding_window: int | None,
    seed: int,
) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads, head_dim = *heads, 8
    context_lens = [query_len + cached for query_len, cached in shapes]
    blocks = [-(-length // block_size) for length in context_lens]
    num_blocks = sum(blocks) + 3
    free = rng.sample(range(num_blocks), num_blocks)
    tables = torch.zeros(len(shapes), max(blocks), dtype=torch.int32)
    k_cache = torch.full((num_blocks * block_size, num_kv_heads, head_dim), float("nan"))
    v_cache = k_cache.clone()
    queries, expected = [], []
    for seq, (query_len, _) in enumerate(shapes):
        table = [free.pop() for _ in range(blocks[seq])]
        tables[seq, : len(table)] = torch.tensor(table, dtype=torch.int32)
        k, v = torch.randn(2, context_lens[seq], num_kv_heads, head_dim, generator=generator)
        rows = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(context_lens[seq])])
        store_kv(k, v, k_cache, v_cache, rows)
        queries.append(torch.randn(query_len, num_heads, head_dim, generator=generator))
        expected.append(dense_attention(queries[-1], k, v, 0.3, sliding_window))
    query_lens = [query_len for query_len, _ in shapes]
    got = paged_attention(
        torch.cat(queries), k_cache, v_cache, tables, query_lens, context_lens, 0.3, block_size, sliding_window
    )
    torch.testing.assert_close(got, torch.cat(expected), rtol=0, atol=1e-5)


def test_decode_is_one_group_and_reads_only_the_window() -> None:
    tables = torch.arange(16, dtype=torch.int32).view(2, 8)
    (group,) = attention_plan(tables, [1, 1], [100, 30], 16, sliding_window=24)
    assert (group.num_seqs, group.query_rows, group.mask) == (2, None, None)
    assert group.key_slots.view(2, 24)[0].tolist() == list(range(76, 100))


def test_long_contexts_do_not_pad_short_ones() -> None:
    tables = torch.zeros(4, 500, dtype=torch.int32)
    groups = attention_plan(tables, [1, 1, 1, 1], [8000, 5, 200, 6000], 16)
    assert sorted(group.key_slots.numel() for group in groups) == [2 * 200, 2 * 8000]


def test_whole_prefill_needs_no_mask() -> None:
    (group,) = attention_plan(torch.arange(4, dtype=torch.int32)[None], [50], [50], 16)
    assert group.mask is None
    assert group.is_causal
