"""The chunked form equals the recurrence, and the recurrence the formula."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.gated_delta_rule import (
    chunked_gated_delta_rule,
    gated_delta_rule,
    l2_normalize,
    recurrent_gated_delta_rule,
)

HEADS, D_K, D_V = 3, 16, 8


def inputs(num_seqs: int, query_len: int, decay: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(query_len)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(num_seqs, *shape, generator=generator)

    q, k = l2_normalize(randn(query_len, HEADS, D_K)), l2_normalize(randn(query_len, HEADS, D_K))
    v, g = randn(query_len, HEADS, D_V), -randn(query_len, HEADS).abs() * decay
    return [q * D_K**-0.5, k, v, g, torch.sigmoid(randn(query_len, HEADS)), randn(HEADS, D_K, D_V)]


def test_recurrence_by_the_formula() -> None:
    q, k, v, g, beta, state = inputs(1, 5)
    outputs, final = recurrent_gated_delta_rule(q, k, v, g, beta, state)
    for head in range(HEADS):
        s = state[0, head].clone()
        for t in range(5):
            s = g[0, t, head].exp() * s
            error = beta[0, t, head] * (v[0, t, head] - s.T @ k[0, t, head])
            s = s + torch.outer(k[0, t, head], error)
            torch.testing.assert_close(outputs[0, t, head], s.T @ q[0, t, head], rtol=0, atol=1e-5)
        torch.testing.assert_close(final[0, head], s, rtol=0, atol=1e-5)


@pytest.mark.parametrize("query_len", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("decay", [0.01, 1.0, 30.0])
def test_chunks_equal_the_recurrence(query_len: int, decay: float) -> None:
    arguments = inputs(2, query_len, decay)
    for chunked, recurrent in zip(
        chunked_gated_delta_rule(*arguments), recurrent_gated_delta_rule(*arguments), strict=True
    ):
        torch.testing.assert_close(chunked, recurrent, rtol=0, atol=2e-5)


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [5, 5], [1, 70, 1, 3], [2]])
def test_packed_sequences_carry_their_states(query_lens: list[int]) -> None:
    singles = [inputs(1, query_len + 100 * i) for i, query_len in enumerate(query_lens)]
    singles = [
        [x[:, :query_len] for x in arguments[:-1]] + arguments[-1:]
        for query_len, arguments in zip(query_lens, singles, strict=True)
    ]
    slots = torch.tensor([4, 0, 3, 1][: len(query_lens)])
    pool = torch.full((6, HEADS, D_K, D_V), 7.0)
    pool[slots] = torch.cat([arguments[-1] for arguments in singles])
    packed = [torch.cat([arguments[i][0] for arguments in singles]) for i in range(5)]
    out = gated_delta_rule(*packed, pool, slots, query_lens)
    start = 0
    for slot, query_len, arguments in zip(slots.tolist(), query_lens, singles, strict=True):
        expected, final = recurrent_gated_delta_rule(*arguments)
        torch.testing.assert_close(out[start : start + query_len], expected[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(pool[slot], final[0], rtol=0, atol=2e-5)
        start += query_len
    untouched = [slot for slot in range(6) if slot not in slots.tolist()]
    assert (pool[untouched] == 7.0).all()
