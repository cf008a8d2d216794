"""Grouping tokens by expert changes nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.reference.moe import moe, route

HIDDEN, FFN, NUM_EXPERTS, TOP_K = 12, 5, 7, 3


def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(20, HIDDEN, generator=generator),
        torch.randn(NUM_EXPERTS, 2 * FFN, HIDDEN, generator=generator),
        torch.randn(NUM_EXPERTS, HIDDEN, FFN, generator=generator),
    )


def test_router_renormalises_the_largest() -> None:
    logits = torch.randn(20, NUM_EXPERTS, generator=torch.Generator().manual_seed(1))
    weights, expert_ids = route(logits, TOP_K)
    largest, expected_ids = logits.topk(TOP_K)
    assert torch.equal(expert_ids, expected_ids)
    torch.testing.assert_close(weights, torch.softmax(largest, -1))


def test_equals_a_loop_over_tokens() -> None:
    x, gate_up, down = layer()
    weights, expert_ids = route(x[:, :NUM_EXPERTS], TOP_K)
    got = moe(x, gate_up, down, weights, expert_ids)
    for token in range(len(x)):
        expected = torch.zeros(HIDDEN)
        for weight, expert in zip(weights[token], expert_ids[token].tolist(), strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            expected += weight * (down[expert] @ (F.silu(gate) * up))
        torch.testing.assert_close(got[token], expected, rtol=0, atol=1e-4)


def test_experts_without_tokens_are_left_alone() -> None:
    x, gate_up, down = layer()
    gate_up[1:], down[1:] = float("nan"), float("nan")
    expert_ids = torch.zeros(len(x), 1, dtype=torch.int64)
    assert torch.isfinite(moe(x, gate_up, down, torch.ones(len(x), 1), expert_ids)).all()
