"""Operations that promise a row's bits whatever lies beside it, tried with random neighbours, sizes and places."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import invariant_numerics
from kernels.reference.gated_delta_rule import l2_normalize
from kernels.reference.invariant_attention import TiledAttention, tiled_attention_plan
from kernels.reference.invariant_matmul import PIECE_ROWS, InvariantMatmul, RowsDependError
from kernels.reference.moe import route
from kernels.reference.numerics import FAST
from kernels.reference.paged_attention import attend, attention_plan
from kernels.reference.rms_norm import rms_norm

# Shapes of SmolLM2's and the tiny models' matrices, and some that fit no tile.
SHAPES = [
    (960, 576), (576, 576), (3072, 576), (576, 1536), (1024, 64), (256, 128), (64, 256), (4, 64), (2, 96), (7, 32),
    (130, 17), (1, 50), (1000, 3),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_rows_are_independent(shape: tuple[int, int], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator, rng = torch.Generator().manual_seed(threads), random.Random(threads)
        weight, bias = torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator)
        x = torch.randn(150, shape[1], generator=generator)
        linear = InvariantMatmul().linear
        alone = torch.cat([linear(x[i : i + 1], weight, bias) for i in range(len(x))])
        torch.testing.assert_close(alone, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
        for _ in range(8):
            rows = torch.tensor(rng.sample(range(len(x)), rng.randrange(1, len(x))))
            assert torch.equal(linear(x[rows], weight, bias), alone[rows])
            x[rows[0]] = float("nan")  # and NaN stays in its row
            assert torch.equal(linear(x[rows[1:]], weight, bias), alone[rows[1:]])
            assert torch.equal(linear(x[rows], weight, bias)[1:], alone[rows[1:]])
            x[rows[0]] = torch.randn(shape[1], generator=generator)
            alone[rows[0]] = linear(x[rows[:1]], weight, bias)[0]
    finally:
        torch.set_num_threads(before)


def test_views_and_no_rows() -> None:
    linear, x, weight = InvariantMatmul().linear, torch.randn(9, 40), torch.randn(12, 20)
    expected = linear(x[:, 3:23].contiguous(), weight)
    assert torch.equal(linear(x[:, 3:23], weight), expected)
    assert torch.equal(linear(x.flatten()[3:23][None], weight), expected[:1])
    assert linear(x[:0, :20], weight).shape == (0, 12)


def test_a_library_whose_rows_depend_on_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(a, b) + 1e-6 * a.sum())
    with pytest.raises(RowsDependError, match=r"shape \(5, 8\)"):
        InvariantMatmul().check(torch.randn(5, 8))


def test_sizes_that_fail_are_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(a, b) + (1e-3 if len(a) in (4, 16) else 0))
    invariant, weight = InvariantMatmul(), torch.randn(5, 8)
    invariant.check(weight)
    assert invariant._pieces == {(5, 8): (8, 32, 64)}
    assert PIECE_ROWS == (4, 8, 16, 32, 64)


ELEMENTWISE = {
    "sigmoid": (invariant_numerics.sigmoid, FAST.sigmoid),
    "silu": (invariant_numerics.silu, FAST.silu),
    "gelu_tanh": (invariant_numerics.gelu_tanh, FAST.gelu_tanh),
    "softplus": (invariant_numerics.softplus, FAST.softplus),
    "tanh": (torch.tanh, torch.tanh),
    "rms_norm": (lambda x: rms_norm(x, None, 1e-6), lambda x: rms_norm(x, None, 1e-6)),
    "l2_normalize": (l2_normalize, l2_normalize),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
    "route": (lambda x: torch.cat(route(x, 1), -1), lambda x: torch.cat(route(x, 1), -1)),
    "row_dot": (
        lambda x: invariant_numerics.row_dot(x, torch.ones(x.shape[1])), lambda x: (x @ torch.ones(x.shape[1]))
    ),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_rows_of_other_operations_are_independent(name: str) -> None:
    invariant, plain = ELEMENTWISE[name]
    generator, rng = torch.Generator().manual_seed(3), random.Random(3)
    for width in (1, 3, 8, 50, 64, 100, 577, 1536):
        x = torch.randn(120, width, generator=generator) * 8
        alone = torch.cat([invariant(x[i : i + 1].clone()) for i in range(len(x))])
        torch.testing.assert_close(alone, plain(x), rtol=1e-4, atol=1e-3)
        for _ in range(6):
            rows = torch.tensor(rng.sample(range(len(x)), rng.randrange(1, len(x))))
            assert torch.equal(invariant(x[rows]), alone[rows])


def test_extreme_arguments() -> None:
    x = torch.tensor([-1e4, -100.0, 0.0, 21.0, 100.0, 1e4, float("nan")])
    for name in ("sigmoid", "silu", "gelu_tanh", "softplus"):
        invariant, plain = ELEMENTWISE[name]
        torch.testing.assert_close(invariant(x), plain(x), equal_nan=True)


class Pool:
    """Keys and values of a few sequences, blocks scattered; everything else is NaN."""

    def __init__(self, context_lens: list[int], block_size: int, seed: int) -> None:
        generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
        blocks = [-(-n // block_size) for n in context_lens]
        free = rng.sample(range(sum(blocks) + 4), sum(blocks) + 4)
        self.block_size, self.context_lens = block_size, context_lens
        self.tables = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
        self.k = torch.full(((sum(blocks) + 4) * block_size, 2, 16), float("nan"))
        self.v = self.k.clone()
        for seq, length in enumerate(context_lens):
            table = [free.pop() for _ in range(blocks[seq])]
            self.tables[seq, : len(table)] = torch.tensor(table, dtype=torch.int32)
            rows = [table[i // block_size] * block_size + i % block_size for i in range(length)]
            self.k[rows] = torch.randn(length, 2, 16, generator=generator) * 2
            self.v[rows] = torch.randn(length, 2, 16, generator=generator)
        self.q = [torch.randn(n, 6, 16, generator=generator) for n in context_lens]

    def run(self, work: list[tuple[int, int, int]], window: int | None, attention: Callable, plan: Callable) -> list:
        """work: (sequence, first query, end); the results of each, in one step."""
        seqs = [seq for seq, _, _ in work]
        q = torch.cat([self.q[seq][start:end] for seq, start, end in work])
        groups = plan(
            self.tables[seqs], [end - start for _, start, end in work], [end for _, _, end in work],
            self.block_size, window,
        )
        out = attention(q, self.k, self.v, groups, 0.25)
        return list(out.split([end - start for _, start, end in work]))


@settings(max_examples=20, deadline=None)
@given(
    context_lens=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    block_size=st.sampled_from([4, 16]),
    window=st.sampled_from([None, 1, 20, 130]),
    seed=st.integers(0, 100),
)
def test_attention_of_a_query_depends_on_its_sequence_alone(
    context_lens: list[int], block_size: int, window: int | None, seed: int
) -> None:
    pool, rng = Pool(context_lens, block_size, seed), random.Random(seed)
    tiled = TiledAttention(InvariantMatmul()).attend
    whole = [pool.run([(seq, 0, n)], window, tiled, tiled_attention_plan)[0] for seq, n in enumerate(context_lens)]
    for seq, n in enumerate(context_lens):
        [plain] = pool.run([(seq, 0, n)], window, attend, attention_plan)
        torch.testing.assert_close(whole[seq], plain, rtol=1e-4, atol=1e-5)
    for _ in range(4):
        work = []
        for seq in rng.sample(range(len(context_lens)), rng.randrange(1, len(context_lens) + 1)):
            start = rng.randrange(context_lens[seq])
            work.append((seq, start, min(context_lens[seq], start + rng.choice([1, 1, 3, 40]))))
        for (seq, start, end), got in zip(work, pool.run(work, window, tiled, tiled_attention_plan), strict=True):
            assert torch.equal(got, whole[seq][start:end])
