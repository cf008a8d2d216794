"""Products of 16 rows and more: what surrounds the Gluon kernel equals its reference, with the kernel emulated."""

from __future__ import annotations

import pytest
import torch

from kernels import projections
from kernels.many_rows import FORMATS, fits, num_splits
from kernels.normed_rows import NormedRows
from kernels.pack_halves import pack_halves
from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference import quant_gemv as reference
from kernels.reference import quant_moe
from kernels.reference.pack_halves import fragment_order
from kernels.reference.pack_halves import pack_halves as reference_pack
from kernels.reference.quant_gemv import dequantize_rows
from kernels.reference.quant_weight import dequantize
from kernels.swiglu_rows import cut, takes
from tests.kernels.activations import poisoned_activation, random_activation, relative_error
from tests.kernels.emulated import emulate
from tests.kernels.random_weights import random_weight

EPS = 1e-6
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # the interpreter's loop bounds
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),  # silu of a very negative number
]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


@pytest.mark.parametrize(("num_cols", "span"), [(384, 0), (384, 384), (256, 128), (256, 64)])
def test_packed_rows(num_cols: int, span: int) -> None:
    x = random_activation(2, num_cols)
    x.scales[1] *= 1e6
    packed = pack_halves(x, span, EPS)
    torch.testing.assert_close(packed, reference_pack(x, span, EPS), rtol=2e-3, atol=1e-6)
    in_order = pack_halves(x, span, EPS, in_order_as=torch.float16)
    assert torch.equal(in_order[:, fragment_order(num_cols)], packed)


def test_each_column_has_one_position() -> None:
    assert sorted(fragment_order(256).tolist()) == list(range(256))


@pytest.mark.parametrize(("num_tokens", "cols"), [(16, 1024), (17, 256)])
def test_matrices_of_every_kind_side_by_side(num_tokens: int, cols: int) -> None:
    x = random_activation(num_tokens, cols)
    kinds = [QuantFormat.Q4_K, QuantFormat.F32, QuantFormat.F16]
    weights = [random_weight(rows, cols, kind, seed=rows) for rows, kind in zip((24, 3, 5), kinds, strict=True)]
    out = torch.full((num_tokens, 32), torch.nan)
    projections.project(x, weights, EPS, out)
    assert relative_error(out, reference.quant_gemv(x, weights, EPS)) < 1e-3


@pytest.mark.parametrize(("kind", "hidden", "group"), [(QuantFormat.Q8_0, 288, 0), (QuantFormat.Q8_0, 288, 128),
                                                       (QuantFormat.F16, 96, 128), (QuantFormat.F32, 32, 128)])
def test_residual_and_next_input(kind: QuantFormat, hidden: int, group: int) -> None:
    x = random_activation(16, 512)
    weight = random_weight(hidden, 512, kind)
    residual = torch.randn(16, hidden)
    norm_weight = torch.rand(hidden) + 0.5
    rows = dequantize_rows(x)
    if group:
        squares = x.square_sums.reshape(16, -1, group // 16).sum(-1)
        rows = rows * torch.rsqrt(squares / group + EPS).repeat_interleave(group, dim=1)
    expected = residual + rows @ dequantize(weight).T
    out = poisoned_activation(16, hidden)
    projections.project_residual(x, weight, residual, norm_weight, out, group, EPS)
    assert relative_error(residual, expected) < 1e-3
    emitted = reference.quantize_rows(residual, norm_weight)
    assert relative_error(out.plain, emitted.plain) < 1e-6
    assert relative_error(out.square_sums, emitted.square_sums) < 1e-6
    assert relative_error(dequantize_rows(out), dequantize_rows(emitted)) < 1e-4
    assert relative_error(out.sums, emitted.sums) < 1e-3


@pytest.mark.parametrize("kind", [QuantFormat.Q6_K, QuantFormat.BF16])
def test_dense_first_half(kind: QuantFormat) -> None:
    x = random_activation(16, 512)
    gate, up = (random_weight(32, 512, kind, seed=seed) for seed in (1, 2))
    out = poisoned_activation(16, 32)
    projections.project_swiglu(x, gate, up, out, EPS)
    allowed = 1e-2 if kind == QuantFormat.BF16 else 2e-3  # activations are rounded to the weights' type
    assert relative_error(dequantize_rows(out), dequantize_rows(quant_moe.swiglu(x, gate, up, EPS))) < allowed


def _normed_rows(num_tokens: int, num_cols: int) -> NormedRows:
    plain = torch.randn(num_tokens, num_cols)
    return NormedRows(plain[:, fragment_order(num_cols)].half(), plain)


@pytest.mark.parametrize("up_kind", [QuantFormat.Q4_K, QuantFormat.Q5_K])  # of one format both are one launch
def test_dense_layer_between_packed_rows(up_kind: QuantFormat) -> None:
    x = _normed_rows(16, 512)
    gate, up = random_weight(256, 512, QuantFormat.Q4_K, seed=1), random_weight(256, 512, up_kind, seed=2)
    down = random_weight(96, 256, QuantFormat.Q6_K)
    assert takes(gate, up, 16) == (up_kind == QuantFormat.Q4_K)
    parts = projections.feed_forward_parts(x, (gate, up, down), 2.0**-4, torch.zeros(8), pdl=False)
    h = torch.nn.functional.silu(x.plain @ dequantize(gate).T) * (x.plain @ dequantize(up).T)
    assert relative_error(parts.sum(0), h @ dequantize(down).T) < 2e-3


def test_normed_rows_meet_matrices_side_by_side() -> None:
    x = _normed_rows(16, 512)
    weights = [random_weight(rows, 512, kind, seed=rows) for rows, kind in
               ((24, QuantFormat.Q4_K), (35200, QuantFormat.Q8_0), (3, QuantFormat.F32))]
    assert [projections.takes_normed(weight, 16) for weight in weights] == [True] * 3
    assert not projections.takes_normed(random_weight(8, 512, QuantFormat.F16), 16)
    out = torch.full((16, 35300), torch.nan)[:, : 35200 + 27]
    projections.project_normed(x, weights, out, pdl=False)
    assert relative_error(out, torch.cat([x.plain @ dequantize(w).T for w in weights], dim=1)) < 1e-3


def test_parts_leave_no_few_programs_for_a_round_of_their_own() -> None:
    def splits(rows: int, cols: int, num_tokens: int = 64) -> int:
        plane = torch.empty(0)
        return num_splits(QuantWeight(QuantFormat.Q4_K, rows, cols, plane, plane, plane, plane, plane), num_tokens)

    measured = {(17408, 5120): 3, (5120, 17408): 6, (10240, 5120): 3, (6144, 5120): 5, (5120, 6144): 6,
                (12288, 2048): 2, (2048, 4096): 8}
    assert {shape: splits(*shape) for shape in measured} == measured
    assert splits(248320, 2048) == splits(248320, 2048, 128) == 1
    assert [splits(5120, 17408, 128), splits(10240, 5120, 128), splits(12288, 2048, 128)] == [4, 2, 1]
    assert not fits(random_weight(64, 256, QuantFormat.BF16), 16)
    assert not fits(random_weight(64, 256, QuantFormat.Q4_K), 24)
    assert all(fits(random_weight(64, 256, kind), 16) for kind in FORMATS)


def test_tiles_beyond_full_rounds_are_cut() -> None:
    """(whole tiles, parts of the others), as they were fastest on an H200."""
    assert cut(QuantFormat.Q4_K, 17408, 5120, 64) == (528, 8)
    assert cut(QuantFormat.Q4_K, 17408, 5120, 128) == (396, 2)
    assert cut(QuantFormat.Q4_K, 17408, 5120, 16) == (544, 1)
    assert cut(QuantFormat.Q4_K, 12288, 4096, 64) == (384, 1)
    assert cut(QuantFormat.Q8_0, 16896, 5120, 64) == (528, 1)
    assert not takes(random_weight(96, 256, QuantFormat.Q4_K), random_weight(96, 256, QuantFormat.Q4_K), 16)
