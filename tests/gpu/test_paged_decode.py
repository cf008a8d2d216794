"""Decode attention on the card at contexts around the borders of its splits, alone and in batches, both caches."""

from __future__ import annotations

import pytest
import torch

from kernels.paged_decode import NUM_SPLITS, PagedKV, paged_decode
from kernels.reference import paged_decode as reference
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.reference.rope_store_kv import rope_store_kv
from kernels.rope_store_kv import HeadShape
from tests.kernels.activations import poisoned_activation, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),  # the first run compiles every kernel
]

BLOCK_SIZE = 16
EPS = 1e-6
LENGTHS = (2047, 2048, 2049, 4096, 16384)
MAX_ERROR = 5e-3  # keys, values and weights of keys are bf16 numbers in the products
SHAPES = {
    "35B-A3B": HeadShape(16, 2, 256, True),
    "30B-A3B": HeadShape(32, 4, 128, False),
    "narrow heads": HeadShape(8, 2, 64, True),
}


def lengths_of(num_seqs: int, context_len: int) -> list[int]:
    """`context_len` first, then others of every kind."""
    return [context_len, *((1, 15, 16, 17, 300, *LENGTHS)[i % 10] for i in range(num_seqs - 1))]


@pytest.mark.parametrize("num_seqs", [1, 8, 17, 64])
@pytest.mark.parametrize("context_len", LENGTHS)
@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_long_contexts(name: str, is_int8: bool, context_len: int, num_seqs: int) -> None:
    torch.manual_seed(context_len + num_seqs)
    shape = SHAPES[name]
    lens = torch.tensor(lengths_of(num_seqs, context_len), dtype=torch.int32, device="cuda")
    blocks = -(-max(LENGTHS) // BLOCK_SIZE)
    pool_blocks = int(((lens + BLOCK_SIZE - 1) // BLOCK_SIZE).sum())
    slots = pool_blocks * BLOCK_SIZE
    order = torch.randperm(pool_blocks, device="cuda").int()
    tables, first = torch.zeros(num_seqs, blocks, dtype=torch.int32, device="cuda"), 0
    for row, length in enumerate(lens.tolist()):
        count = -(-length // BLOCK_SIZE)
        tables[row, :count] = order[first : first + count]
        first += count
    size, scales = (slots, shape.num_kv_heads, shape.head_dim), None
    if is_int8:
        kv = tuple(torch.randint(-127, 128, size, dtype=torch.int8, device="cuda") for _ in range(2))
        scales = tuple((torch.rand(size[:2], device="cuda") * 0.02 + 0.005).half() for _ in range(2))
    else:
        kv = tuple(torch.randn(size, device="cuda").bfloat16() for _ in range(2))
    projected, positions = torch.randn(num_seqs, shape.row, device="cuda"), lens.long() - 1
    inv_freq = 1e6 ** -(torch.arange(shape.head_dim // 8, device="cuda") / (shape.head_dim // 8))
    norms = tuple(torch.rand(shape.head_dim, device="cuda") + 0.5 for _ in range(2))
    partial = torch.full((num_seqs, shape.num_q_heads, NUM_SPLITS, shape.head_dim), torch.nan, device="cuda")
    counts = torch.zeros(num_seqs, shape.num_kv_heads, dtype=torch.int32, device="cuda")
    outs = [poisoned_activation(num_seqs, shape.num_q_heads * shape.head_dim, "cuda") for _ in range(3)]
    for out in outs:  # whichever split ends last
        paged_decode(projected, positions, PagedKV(*kv, scales, tables, lens, BLOCK_SIZE), shape, inv_freq, norms,
                     (partial, partial[..., 0].clone(), counts), out, EPS)
        assert not counts.any()
        assert torch.equal(out.values, outs[0].values)
        assert torch.equal(out.scales, outs[0].scales)
    q, *_ = rope_store_kv(projected, shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.is_gated, positions,
                          inv_freq, norms, EPS)
    width = shape.num_q_heads * shape.q_stride
    gate = torch.unflatten(projected[:, :width], 1, (shape.num_q_heads, 2, -1))[:, :, 1] if shape.is_gated else None
    expected = reference.paged_decode(q, *kv, scales, tables, lens, BLOCK_SIZE, 0, gate)
    found = dequantize_rows(out)
    for row in range(num_seqs):
        assert relative_error(found[row], dequantize_rows(quantize_rows(expected))[row]) < MAX_ERROR, row
