"""Rope with cache store, and split attention with its combination, equal their float32 references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.paged_decode import NUM_SPLITS, AttentionTile, PagedKV, paged_decode
from kernels.quant_format import HalfRows
from kernels.reference import half_rows as half_reference
from kernels.reference import paged_decode as reference
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.reference.rope_store_kv import rope_store_kv as reference_rope
from kernels.rope_store_kv import HeadShape, rope_store_kv
from tests.kernels.activations import poisoned_activation, relative_error

EPS = 1e-6
# the interpreter turns a loop's run-time bounds into Python numbers in a way that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("is_int8", [False, True])
def test_rope_and_store(is_gated: bool, is_int8: bool) -> None:
    shape = HeadShape(4, 2, 64, is_gated)
    projected = torch.randn(2, shape.row)
    positions, slots = torch.tensor([5, 4001]), torch.tensor([9, 3])
    inv_freq = 1e4 ** -(torch.arange(8) / 8)
    norms = (torch.rand(64) + 0.5, torch.rand(64) + 0.5)
    q = torch.full((2, 4, 64), torch.nan)
    dtype = torch.int8 if is_int8 else torch.bfloat16
    kv = tuple(torch.zeros(12, 2, 64, dtype=dtype) for _ in range(2))
    scales = tuple(torch.zeros(12, 2, dtype=torch.float16) for _ in range(2)) if is_int8 else None
    rope_store_kv(projected, shape, positions, slots, inv_freq, norms, q, kv, scales, EPS)
    expected = reference_rope(projected, 4, 2, 64, is_gated, positions, inv_freq, norms, EPS)
    assert relative_error(q, expected[0]) < 1e-5
    for i in range(2):
        stored = kv[i][slots].float() * (scales[i][slots].float()[..., None] if scales else 1.0)
        assert relative_error(stored, expected[i + 1]) < 1e-2
        assert not kv[i][torch.tensor([0, 1, 2, 4, 8, 10])].any()


@pytest.mark.parametrize(
    "tile", [AttentionTile(16, 4), AttentionTile(16, 4, 16, 32), AttentionTile(16, 4, num_stages=2)],
    ids=["shares", "least", "lone"],
)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "is_gated", "window", "is_int8", "is_half"),
    [(4, 2, 64, True, 0, False, False), (3, 1, 128, False, 0, True, False), (2, 2, 32, False, 40, False, False),
     (4, 2, 64, True, 0, False, True)],
)
def test_decode_attention(
    heads: int, kv_heads: int, dim: int, is_gated: bool, window: int, is_int8: bool, is_half: bool, tile: AttentionTile
) -> None:
    shape = HeadShape(heads, kv_heads, dim, is_gated)
    lens = torch.tensor([1, 17, 200], dtype=torch.int32)
    block_size, blocks = 16, 13
    tables = torch.randperm(3 * blocks).reshape(3, blocks).int()
    slots = 3 * blocks * block_size
    if is_int8:
        kv = tuple(torch.randint(-127, 128, (slots, kv_heads, dim), dtype=torch.int8) for _ in range(2))
        scales = tuple((torch.rand(slots, kv_heads) * 0.02 + 0.005).half() for _ in range(2))
    else:
        kv, scales = tuple(torch.randn(slots, kv_heads, dim).bfloat16() for _ in range(2)), None
    projected, positions = torch.randn(3, shape.row), lens.long() - 1
    inv_freq = 1e4 ** -(torch.arange(dim // 4) / (dim // 4))
    norms = (torch.rand(dim) + 0.5, torch.rand(dim) + 0.5)
    workspace = (torch.full((3, heads, NUM_SPLITS, dim), torch.nan), torch.full((3, heads, NUM_SPLITS), torch.nan),
                 torch.zeros(3, kv_heads, dtype=torch.int32))
    half = HalfRows(torch.zeros(8, heads * dim, dtype=torch.float16), torch.ones(8), torch.ones(8), is_wide=True)
    out = replace(poisoned_activation(3, heads * dim), half=half if is_half else None)
    untouched = [cache.clone() for cache in kv]
    paged_decode(projected, positions, PagedKV(*kv, scales, tables, lens, block_size, window), shape, inv_freq, norms,
                 workspace, out, EPS, tile=tile)
    assert not workspace[2].any()
    q, *new = reference_rope(projected, heads, kv_heads, dim, is_gated, positions, inv_freq, norms, EPS)
    rows = tables.gather(1, positions[:, None] // block_size).squeeze(1) * block_size + positions % block_size
    for i in range(2):
        stored = kv[i][rows].float() * (scales[i][rows].float()[..., None] if scales else 1.0)
        assert relative_error(stored, new[i]) < 1e-2
        kept = torch.ones(slots, dtype=torch.bool).scatter(0, rows, False)
        assert torch.equal(kv[i][kept], untouched[i][kept])
    gate = projected[:, : heads * shape.q_stride].reshape(3, heads, 2, dim)[:, :, 1] if is_gated else None
    expected = reference.paged_decode(q, *kv, scales, tables, lens, block_size, window, gate)
    actual = half_reference.columns(half, 3) if is_half else dequantize_rows(out)
    assert relative_error(actual, dequantize_rows(quantize_rows(expected))) < 3e-3


def test_bits_depend_on_no_neighbour() -> None:
    shape, block_size, blocks = HeadShape(4, 2, 32, True), 16, 13
    tables = torch.randperm(3 * blocks).reshape(3, blocks).int()
    kv = tuple(torch.randn(3 * blocks * block_size, 2, 32).bfloat16() for _ in range(2))
    projected, inv_freq = torch.randn(3, shape.row), 1e4 ** -(torch.arange(8) / 8)
    rows = []
    for neighbours in ((1, 200), (200, 33)):
        lens = torch.tensor([neighbours[0], 70, neighbours[1]], dtype=torch.int32)
        workspace = (torch.full((48, 4, 32), torch.nan), torch.full((48, 4), torch.nan),
                     torch.zeros(3, 2, dtype=torch.int32))
        out = poisoned_activation(3, 128)
        cache = PagedKV(*(x.clone() for x in kv), None, tables, lens, block_size)
        paged_decode(projected, lens.long() - 1, cache, shape, inv_freq, None, workspace, out, EPS,
                     AttentionTile(16, 4, 16, 32))
        rows.append((out.values[1], out.scales[1], out.sums[1]))
    assert all(map(torch.equal, *rows))
