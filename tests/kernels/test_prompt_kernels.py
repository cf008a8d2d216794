"""Each kernel of a prompt's chunks equals its reference: several sequences at once, any starts, poisoned outputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.conv_heads import conv_heads
from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.half_products import half_products
from kernels.paged_prefill import paged_prefill
from kernels.prompt_rows import add_norm, gate_up, gated_norm
from kernels.reference import conv_heads as conv_reference
from kernels.reference import delta_rule_chunks as delta_reference
from kernels.reference import paged_prefill as attention_reference
from kernels.reference import prompt_rows as rows_reference
from kernels.rope_store_kv import HeadShape
from kernels.spans import Spans, pack_spans
from tests.kernels.random_model import random_held

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16
BLOCK = 16
# the interpreter turns a loop's run-time bounds into Python numbers in a way that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

Parts = list[tuple[int, int, int]]  # slot, start, tokens
SHORT: Parts = [(2, 0, 1), (0, 5, 17), (3, 0, 64)]
LONG: Parts = [(1, 0, 70), (4, 300, 131), (0, 64, 3)]


def make_spans(parts: Parts, max_blocks: int = 1) -> Spans:
    num_tokens = sum(count for _, _, count in parts)
    tables = (torch.from_numpy(table).to(DEVICE) for table in pack_spans(parts, len(parts) + 1, num_tokens + 100))
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randperm(5 * max_blocks, generator=generator).view(5, max_blocks).int()
    return Spans(*tables, blocks.to(DEVICE))


def poisoned(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype, device=DEVICE)


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the expected numbers' size."""
    assert found.isfinite().all()
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp_min(1e-9))


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize(("head_dim", "parts"), [(32, SHORT), (64, LONG)])
def test_attention(head_dim: int, parts: Parts, is_int8: bool, window: int) -> None:
    torch.manual_seed(0)
    shape = HeadShape(4, 2, head_dim, is_gated=window == 0)
    spans = make_spans(parts, max_blocks=28)
    num_tokens, num_rows = sum(count for _, _, count in parts), 5 * 28 * BLOCK
    q = torch.randn(num_tokens, 4, head_dim, device=DEVICE)
    q = q.to(torch.float16 if is_int8 else torch.bfloat16) if DEVICE == "cuda" else q
    scales = None
    if is_int8:
        kv = tuple(torch.randint(-127, 128, (num_rows, 2, head_dim), dtype=torch.int8, device=DEVICE) for _ in "kv")
        scales = tuple((torch.rand(num_rows, 2, device=DEVICE) * 0.02).half() for _ in "kv")
    else:
        kv = tuple(torch.randn(num_rows, 2, head_dim, device=DEVICE).bfloat16() for _ in "kv")
    projected = torch.randn(num_tokens, shape.row + 8, device=DEVICE)[:, : shape.row]
    out, expected = (poisoned(num_tokens, 4 * head_dim) for _ in range(2))
    paged_prefill(q, projected, kv, scales, spans, shape, BLOCK, window, 0.2, out)
    attention_reference.paged_prefill(q, projected, kv, scales, spans, shape, BLOCK, window, 0.2, expected)
    assert error(out, expected) < (2e-2 if DEVICE == "cuda" else 2e-3)


@pytest.mark.parametrize("parts", [SHORT, LONG])
def test_convolution(parts: Parts) -> None:
    torch.manual_seed(0)
    spans, num_tokens = make_spans(parts), sum(count for _, _, count in parts)
    x = torch.randn(num_tokens, 150, device=DEVICE)[:, :128]
    taps, ring = torch.randn(4, 128, device=DEVICE), torch.randn(6, 4, 128, device=DEVICE)
    rings = ring.clone(), ring.clone()
    out, expected = (poisoned(num_tokens, 8, 16) for _ in range(2))
    conv_heads(x, taps, rings[0], spans, 2, out)
    conv_reference.conv_heads(x, taps, rings[1], spans, 2, expected)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)
    assert torch.equal(rings[0], rings[1])


@pytest.mark.parametrize("parts", [SHORT, LONG])
@pytest.mark.parametrize("is_repeated", [False, True])
def test_delta_rule(parts: Parts, is_repeated: bool) -> None:
    """Repeated: one token over and over, hardly a decay: the triangles' powers would be huge."""
    torch.manual_seed(0)
    spans, num_tokens = make_spans(parts), sum(count for _, _, count in parts)
    heads = torch.randn(num_tokens, 8, 32, device=DEVICE)
    if is_repeated:
        heads = heads[:1].repeat(num_tokens, 1, 1)
    heads[:, :4] /= heads[:, :4].norm(dim=-1, keepdim=True)
    gates = torch.randn(num_tokens, 8, device=DEVICE) + (4 if is_repeated else 0)
    a = -torch.rand(4, device=DEVICE) * (1e-4 if is_repeated else 1)
    inputs = DeltaRuleInputs(heads.half(), gates[:, :4], gates[:, 4:], a, torch.randn(4, device=DEVICE), 2)
    states = [torch.randn(5, 4, 32, 32, generator=torch.Generator().manual_seed(3)).to(DEVICE) for _ in range(2)]
    held = [random_held(states[0], 2)]
    held.append(held[0].clone())
    out, expected = (poisoned(num_tokens, 128) for _ in range(2))
    terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
    delta_rule_chunks(inputs, spans, terms)
    delta_rule_walk(inputs, terms, spans, states[0], held[0], out)
    delta_reference.delta_rule(inputs, spans, states[1], held[1], expected)
    assert error(out, expected) < 5e-3
    assert error(states[0], states[1]) < 5e-3


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("num_added", [0, 1, 2])
@pytest.mark.parametrize("has_post", [False, True])
def test_norms(num_added: int, has_post: bool, factor: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 96, device=DEVICE)
    added = (torch.randn(7, 100, device=DEVICE)[:, :96], torch.randn(7, 96, device=DEVICE))[:num_added]
    norm, post = torch.rand(96, device=DEVICE), torch.rand(96, device=DEVICE)
    results = []
    for implementation in (add_norm, rows_reference.add_norm):
        stream, half, plain = x.clone(), poisoned(7, 96), poisoned(7, 96, dtype=torch.float32)
        implementation(stream, added, (post, 1e-5) if has_post else None, norm, 1e-6, half, plain, factor)
        results.append((stream, half, plain))
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


def test_gated_norm() -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(5, 96, device=DEVICE).half(), torch.randn(5, 110, device=DEVICE)[:, 3:99]
    norm = torch.rand(32, device=DEVICE)
    out, expected = poisoned(5, 96), poisoned(5, 96)
    gated_norm(x, gate, norm, 1e-6, out)
    rows_reference.gated_norm(x, gate, norm, 1e-6, expected)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("is_gelu", [False, True])
def test_gates(is_gelu: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 200, device=DEVICE)
    x[0, 0], x[0, 96] = 300.0, 1000.0
    row_gate = None if is_gelu else torch.randn(5, 3, device=DEVICE)[:, 1]
    out, expected = poisoned(5, 96), poisoned(5, 96)
    for factor in (1.0, 0.125):  # the product is beyond f16 without one
        gate_up(x[:, :192], row_gate, is_gelu, out.fill_(math.nan), factor)
        rows_reference.gate_up(x[:, :192], row_gate, is_gelu, expected, factor)
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)


def test_inverse_of_the_hardest_triangle() -> None:
    """All ones below the diagonal, which equal keys without decay make: powers of it overflow what their sum
    cancels."""
    spans = make_spans([(0, 0, 64)])
    heads = torch.zeros(64, 3, 16, device=DEVICE)
    heads[:, :2, 0] = 1.0
    heads[:, 2] = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    gates, nothing = torch.full((64, 1), 100.0, device=DEVICE), torch.zeros(1, device=DEVICE)
    inputs = DeltaRuleInputs(heads.half(), gates, gates, nothing, nothing, 1)
    terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
    delta_rule_chunks(inputs, spans, terms)
    values = heads[:, 2].half().float()
    expected = torch.cat((values[:1], values[1:] - values[:-1]))  # each write takes back the one before it
    torch.testing.assert_close(terms.u[0, 0, :, :16].float(), expected, atol=4e-3, rtol=2e-3)


@pytest.mark.parametrize(("num_tokens", "num_rows", "num_cols"), [(1, 70, 96), (65, 40, 136), (200, 300, 64)])
def test_products(num_tokens: int, num_rows: int, num_cols: int) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(rows, num_cols, device=DEVICE).half() for rows in (num_tokens, num_rows))
    found = half_products(x, weight)
    assert error(found, x.float() @ weight.float().T) < 1e-4
    if DEVICE == "cuda":
        assert torch.equal(half_products(x[: num_tokens // 3 + 1].contiguous(), weight), found[: num_tokens // 3 + 1])
