"""Experts over sorted tokens: choice, order, runs and sums equal their references; the Gluon products are emulated."""

from __future__ import annotations

import pytest
import torch

from kernels.combine_experts import combine_experts
from kernels.normed_rows import NormedRows, add_parts_normed, combine_experts_normed
from kernels.pack_halves import pack_rows
from kernels.plain_rows import plain_rows
from kernels.quant_format import QuantFormat
from kernels.reference import quant_gemv as reference
from kernels.reference.grouped_experts import grouped_experts, sorted_pairs
from kernels.reference.normed_rows import normed, weighted
from kernels.reference.pack_halves import fragment_order
from kernels.reference.quant_moe import quant_route
from kernels.route_tokens import route_tokens
from kernels.sort_tokens import Runs, sort_tokens
from sparkinfer.model.cuda import experts
from sparkinfer.model.cuda.weights import ExpertFFN
from tests.kernels.activations import random_activation, relative_error
from tests.kernels.emulated import emulate
from tests.kernels.random_weights import random_weight

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # interpreted loop bounds
EXPERTS, TOP_K, FFN, HIDDEN = 5, 2, 128, 256


@pytest.mark.parametrize(("num_tokens", "length", "num_experts"), [(1, 16, 5), (40, 16, 5), (33, 16, 40)])
def test_pairs_sorted_by_expert(num_tokens: int, length: int, num_experts: int) -> None:
    ids = torch.stack([torch.randperm(num_experts)[:3] for _ in range(num_tokens)]).int()
    ids[0] = 3  # an expert may be chosen by every slot
    runs = Runs.empty(ids.numel(), num_experts, length, torch.device("cpu"))
    runs.order.fill_(-1)
    sort_tokens(ids, num_experts, runs)
    order, expected = sorted_pairs(ids, num_experts, length)
    assert runs.order.tolist() == order.tolist()
    assert runs.table[: int(runs.count), :3].tolist() == expected


def test_there_is_room_for_the_worst_choice() -> None:
    one_each = torch.arange(40)[:, None].int() % 8
    runs = Runs.empty(40, 8, 4, torch.device("cpu"))
    sort_tokens(one_each, 8, runs)
    assert int(runs.count) == 16 <= runs.most


@pytest.mark.parametrize("has_shared", [False, True])
def test_choice_and_weights(has_shared: bool) -> None:
    parts = torch.randn(3, 7, 40 + has_shared)
    parts[:, 0] = 0.0  # equal logits: the lower numbers
    ids, weights = torch.full((7, 4), -1, dtype=torch.int32), torch.full((7, 4 + has_shared), torch.nan)
    route_tokens(parts, ids, weights)
    expected_ids, expected = quant_route(parts.sum(0), 4, has_shared)
    assert ids[0].tolist() == [0, 1, 2, 3]
    assert torch.equal(ids[1:].long(), expected_ids[1:])
    torch.testing.assert_close(weights, expected[:, : 4 + has_shared])


@pytest.mark.parametrize(("num_tokens", "cols", "eps"), [(16, 256, 1e-6), (20, 1024, None)])
def test_small_matrices_of_plain_numbers(num_tokens: int, cols: int, eps: float | None) -> None:
    x = random_activation(num_tokens, cols)
    weight = random_weight(37, cols, QuantFormat.F32)
    parts = plain_rows(x.plain, weight, None if eps is None else x.square_sums, eps or 0.0)
    expected = x.plain @ weight.quants.T
    if eps is not None:
        expected = expected * reference.rms_factor(x, eps)
    assert relative_error(parts.sum(0), expected) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_plain_rows_packed(dtype: torch.dtype) -> None:
    x = torch.randn(3, 384).to(dtype)
    assert torch.equal(pack_rows(x), x[:, fragment_order(384)].half())


def _experts(has_shared: bool) -> ExpertFFN:
    gate, up = (random_weight(EXPERTS * FFN, HIDDEN, QuantFormat.Q4_K, seed=seed) for seed in (1, 2))
    down = random_weight(EXPERTS * HIDDEN, FFN, QuantFormat.Q8_0, seed=3)
    router = random_weight(EXPERTS + has_shared, HIDDEN, QuantFormat.F32)
    shared = tuple(random_weight(rows, cols, QuantFormat.Q8_0, seed=rows) for rows, cols in
                   ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))) if has_shared else None
    return ExpertFFN(router, gate, up, down, shared, TOP_K, half_factor=2.0**-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_combined(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    ffn, x = _experts(has_shared=True), torch.randn(40, HIDDEN)
    logits = torch.randn(40, EXPERTS + 1)
    ids, weights = experts.choose(logits[None], ffn)
    out = torch.full((40, HIDDEN), torch.nan)
    combine_experts(experts.products(pack_rows(x), ids, ffn, dtype), weights, out)
    expected = grouped_experts(x, ids, weights[:, :TOP_K], ffn.gate, ffn.up, ffn.down)
    assert relative_error(out, expected) < 2e-3
    routed, _ = experts.grouped_experts(x, logits, ffn)
    assert relative_error(routed, expected) < 1e-6


def _poisoned(num_tokens: int, num_cols: int) -> NormedRows:
    out = NormedRows.empty(num_tokens, num_cols, torch.device("cpu"))
    out.packed.fill_(torch.nan)
    out.plain.fill_(torch.nan)
    return out


@pytest.mark.parametrize("has_shared", [False, True])
def test_sums_into_the_residual(has_shared: bool) -> None:
    products, residual, norm = torch.randn(32, 384), torch.randn(16, 384), torch.rand(384) + 0.5
    weights = torch.rand(16, 2 + has_shared)
    shared = torch.randn(3, 16, 384) if has_shared else None
    expected = residual + weighted(products, weights, shared)
    out = _poisoned(16, 384)
    combine_experts_normed(products, weights, shared, residual, norm, 1e-6, out)
    assert relative_error(residual, expected) < 1e-6
    assert relative_error(out.plain, normed(expected, norm, 1e-6)) < 1e-6
    assert relative_error(out.packed.float(), out.plain[:, fragment_order(384)]) < 1e-3


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_parts_into_the_residual(splits: int) -> None:
    residual, norm = torch.randn(4, 256), torch.rand(256) + 0.5
    norm[1] = 1e6  # beyond f16
    parts = torch.randn(splits, 4, 256)
    expected = residual + parts.sum(0)
    out = _poisoned(4, 256)
    add_parts_normed(parts if splits else None, residual, norm, 1e-6, out)
    assert relative_error(residual, expected) < 1e-6
    rows = normed(expected, norm, 1e-6)
    assert relative_error(out.plain, rows) < 1e-6
    assert relative_error(out.packed.float(), rows[:, fragment_order(256)].clamp(-65504, 65504)) < 1e-3
