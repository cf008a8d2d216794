"""Router and choice in one launch equal the product and the choice of their own in float32."""

from __future__ import annotations

import pytest
import torch

from kernels.quant_format import QuantFormat, QuantWeight
from kernels.reference import quant_gemv as reference
from kernels.reference.quant_moe import quant_route
from kernels.route_tokens import route_tokens
from kernels.router_choice import router_choice
from tests.kernels.activations import random_activation, relative_error

EPS = 1e-6


def _router(num_rows: int, num_cols: int) -> QuantWeight:
    plane = torch.randn(num_rows, num_cols, generator=torch.Generator().manual_seed(num_cols)) / num_cols**0.5
    return QuantWeight(QuantFormat.F32, num_rows, num_cols, plane, plane, plane, plane, plane)


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_cols", "has_shared"), [
    (8, 128, 256, False), (5, 256, 256, True), (4, 6, 96, True), (1, 140, 2080, False)])
def test_the_choice_of_a_routers_logits(num_tokens: int, num_experts: int, num_cols: int, has_shared: bool) -> None:
    x = random_activation(num_tokens, num_cols)
    router = _router(num_experts + has_shared, num_cols)
    top_k = min(8, num_experts)
    logits = torch.full((num_tokens, 288), torch.nan)[:, : router.num_rows]
    count = torch.zeros(1, dtype=torch.int32)
    found = []
    for _ in range(2):  # the second time with the count that the first has left
        ids = torch.full((num_tokens, top_k), -1, dtype=torch.int32)
        weights = torch.full((num_tokens, top_k + has_shared), torch.nan)
        router_choice(x, router, EPS, logits, ids, weights, count)
        found.append((ids, weights))
    assert relative_error(logits, reference.quant_gemv(x, [router], EPS)) < 1e-5
    expected_ids, expected = quant_route(logits, top_k, has_shared)
    for ids, weights in found:
        assert torch.equal(ids.long(), expected_ids)
        torch.testing.assert_close(weights, expected[:, : weights.shape[1]], atol=1e-6, rtol=1e-5)
    alone = torch.full_like(found[0][1], torch.nan)
    route_tokens(logits[None], ids := torch.full_like(found[0][0], -1), alone)
    assert torch.equal(ids, found[0][0])
    assert torch.equal(alone, found[0][1])


def test_of_equal_logits_the_lower_number_wins_and_zeros_have_no_sign() -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0, 2.0, -0.0, 2.0]])
    ids = torch.full((1, 4), -1, dtype=torch.int32)
    route_tokens(logits[None], ids, torch.full((1, 4), torch.nan))
    assert ids.tolist() == [[3, 5, 1, 2]]


def test_a_row_has_the_bits_it_has_beside_others() -> None:
    x = random_activation(8, 512)
    router = _router(128, 512)
    rows = []
    for num_tokens in (8, 5):
        planes = ("values", "scales", "sums", "plain", "square_sums")
        some = type(x)(*(getattr(x, name)[:num_tokens].contiguous() for name in planes))
        logits = torch.empty(num_tokens, 128)
        ids = torch.empty(num_tokens, 8, dtype=torch.int32)
        weights = torch.empty(num_tokens, 8)
        router_choice(some, router, EPS, logits, ids, weights, torch.zeros(1, dtype=torch.int32))
        rows.append((logits[:5], ids[:5], weights[:5]))
    assert all(torch.equal(a, b) for a, b in zip(*rows, strict=True))
