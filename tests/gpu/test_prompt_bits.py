"""A prompt's row comes to the same bits however the prompt is cut into steps, kernel by kernel."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from kernels.conv_heads import conv_heads
from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.half_products import half_products
from kernels.held_updates import HELD
from kernels.paged_prefill import paged_prefill
from kernels.rope_store_kv import HeadShape
from kernels.spans import CHUNK, Spans, pack_spans
from ops.bench.gpu_timing import capture
from sparkinfer.model.cuda.row_products import RowProducts, library_product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
NUM_TOKENS, BLOCK = 700, 16


def chunk_spans(start: int, count: int, tables: Tensor) -> Spans:
    return Spans(*(torch.from_numpy(table).cuda() for table in pack_spans([(0, start, count)], 1, count)), tables)


def poisoned(*shape: int) -> Tensor:
    return torch.full(shape, math.nan, dtype=torch.float16, device="cuda")


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("is_int8", [False, True], ids=["bf16", "int8"])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_attention(head_dim: int, is_int8: bool, window: int) -> None:
    torch.manual_seed(0)
    shape = HeadShape(8, 2, head_dim, is_gated=True)
    tables = torch.randperm(44, device="cuda")[None].int()
    size, scales = (44 * BLOCK, 2, head_dim), None
    if is_int8:
        kv = tuple(torch.randint(-127, 128, size, dtype=torch.int8, device="cuda") for _ in "kv")
        scales = tuple((torch.rand(size[:2], device="cuda") * 0.02).half() for _ in "kv")
    else:
        kv = tuple(torch.randn(size, device="cuda").bfloat16() for _ in "kv")
    q = torch.randn(NUM_TOKENS, 8, head_dim, device="cuda").to(torch.float16 if is_int8 else torch.bfloat16)
    projected = torch.randn(NUM_TOKENS, shape.row, device="cuda")

    def attend(cuts: tuple[int, ...]) -> Tensor:
        out = poisoned(NUM_TOKENS, 8 * head_dim)
        for start, end in itertools.pairwise((0, *itertools.accumulate(cuts))):
            spans = chunk_spans(start, end - start, tables)
            paged_prefill(q[start:end], projected[start:end], kv, scales, spans, shape, BLOCK, window, head_dim**-0.5,
                          out[start:end])
        return out

    whole = attend((NUM_TOKENS,))
    assert whole.isfinite().all()
    assert torch.equal(attend((1, 63, 17, 128, 5, 100, 200, 186)), whole)


def test_delta_net() -> None:
    """Cut at multiples of what the rule takes at once."""
    torch.manual_seed(0)
    num_k_heads, num_v_heads, d = 2, 4, 128
    heads = 2 * num_k_heads + num_v_heads
    x, taps = torch.randn(NUM_TOKENS, heads * d, device="cuda"), torch.randn(4, heads * d, device="cuda")
    gates = torch.randn(NUM_TOKENS, 2 * num_v_heads, device="cuda")
    a, dt_bias = -torch.rand(num_v_heads, device="cuda"), torch.randn(num_v_heads, device="cuda")
    tables = torch.zeros(1, 1, dtype=torch.int32, device="cuda")

    def mix(cuts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        ring = torch.full((1, 4, heads * d), math.nan, device="cuda")
        state = torch.full((1, num_v_heads, d, d), math.nan, device="cuda")
        held = torch.full((1, num_k_heads + num_v_heads, HELD, d), math.nan, device="cuda")
        out = poisoned(NUM_TOKENS, num_v_heads * d)
        for start, end in itertools.pairwise((0, *itertools.accumulate(cuts))):
            spans = chunk_spans(start, end - start, tables)
            mixed = poisoned(end - start, heads, d)
            conv_heads(x[start:end], taps, ring, spans, num_k_heads, mixed)
            alpha, beta = torch.split(gates[start:end], num_v_heads, dim=1)
            inputs = DeltaRuleInputs(mixed, alpha, beta, a, dt_bias, num_k_heads)
            terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
            delta_rule_chunks(inputs, spans, terms)
            delta_rule_walk(inputs, terms, spans, state, held, out[start:end])
        return out, state

    whole = mix((NUM_TOKENS,))
    assert whole[0].isfinite().all()
    for found, expected in zip(mix((CHUNK, 3 * CHUNK, NUM_TOKENS - 4 * CHUNK)), whole, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("num_tokens", [64, 100, 512, 700, 2048, 4500])
@pytest.mark.parametrize(("num_rows", "num_cols"), [(2048, 4096), (9216, 2048), (300, 512)])
def test_products_of_settled_sizes(num_rows: int, num_cols: int, num_tokens: int) -> None:
    """The library's own products among them, launched and captured."""
    asked = []

    def counted(x: Tensor, weight: Tensor, out: Tensor) -> None:
        asked.append(x.shape[0])
        library_product(x, weight, out)

    torch.manual_seed(0)
    products = RowProducts(counted)
    for size in (64, 512, 2048):
        products.settle(size, {(num_rows, num_cols)}, torch.device("cuda"))
    asked.clear()
    x, weight = (torch.randn(rows, num_cols, device="cuda").half() for rows in (num_tokens, num_rows))
    expected = half_products(x, weight)
    assert torch.equal(products.product(x, weight), expected)
    assert num_tokens < 512 or asked  # shapes of this many rows are not cut along the columns
    captured = []
    capture(lambda: captured.append(products.product(x, weight))).replay()
    assert torch.equal(captured[-1], expected)
