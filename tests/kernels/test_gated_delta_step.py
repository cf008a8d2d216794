"""A Gated DeltaNet decode step in one kernel equals the float32 reference over several steps."""

from __future__ import annotations

import pytest
import torch

from kernels.gated_delta_step import DeltaNetWeights, gated_delta_step
from kernels.reference import gated_delta_step as reference
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from tests.kernels.activations import poisoned_activation, relative_error

EPS = 1e-6
NUM_SLOTS, DIM = 4, 32


@pytest.mark.parametrize(("num_k_heads", "num_v_heads"), [(2, 4), (1, 4), (2, 2)])
def test_steps_follow_the_reference(num_k_heads: int, num_v_heads: int) -> None:
    channels = (2 * num_k_heads + num_v_heads) * DIM
    weights = DeltaNetWeights(torch.randn(channels, 4), -torch.rand(num_v_heads), torch.randn(num_v_heads),
                              torch.rand(DIM) + 0.5, num_k_heads)
    ring, state = torch.randn(NUM_SLOTS, 4, channels), torch.randn(NUM_SLOTS, num_v_heads, DIM, DIM)
    expected_ring, expected_state = ring.clone(), state.clone()
    slots, positions = torch.tensor([2, 0]), torch.tensor([0, 7])
    for _ in range(3):
        projected = torch.randn(2, channels + num_v_heads * DIM + 2 * num_v_heads) * 3
        out = poisoned_activation(2, num_v_heads * DIM)
        gated_delta_step(projected, weights, ring, state, slots, positions, out, block_v=16)
        expected = reference.gated_delta_step(
            projected, weights.conv, weights.a, weights.dt_bias, weights.norm, num_k_heads, expected_ring,
            expected_state, slots, positions, EPS,
        )
        assert torch.equal(ring, expected_ring)
        assert relative_error(state, expected_state) < 1e-5
        factor = torch.rsqrt(out.square_sums.reshape(2, num_v_heads, -1).sum(-1) / DIM + EPS)
        actual = dequantize_rows(out) * factor.repeat_interleave(DIM, dim=1)
        assert relative_error(actual, dequantize_rows(quantize_rows(expected))) < 2e-3
        positions = positions + 1
