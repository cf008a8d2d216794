"""A Gated DeltaNet decode step in two kernels equals the float32 reference over several steps, and leaves what
`gated_delta_step` leaves; tests/kernels/test_gated_delta_step.py has both take turns."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from kernels.delta_rows import ProjectedParts
from kernels.held_updates import HELD
from kernels.reference.held_updates import settled
from tests.kernels.activations import relative_error
from tests.kernels.delta_layer import DeltaLayer

ONE, TWO, THREE, FOUR = [(4, 2)], [(1, 3), (3, 5)], [(1, 1), (2, 3), (1, 8)], [(1, 1), (1, 2), (1, 8), (1, 3)]
SLOTS = torch.tensor([4, 0, 2])
POSITIONS = torch.tensor([0, 7, 30])


@pytest.mark.parametrize(
    ("num_k_heads", "num_v_heads", "head_dim", "matrices"),
    [(2, 8, 16, FOUR), (2, 8, 32, ONE), (1, 2, 64, TWO), (2, 4, 64, THREE), (2, 2, 64, ONE), (1, 2, 128, ONE)],
)
def test_steps_follow_the_reference(
    num_k_heads: int, num_v_heads: int, head_dim: int, matrices: list[tuple[int, int]]
) -> None:
    """Each slot writes its state at another step."""
    torch.manual_seed(0)
    layer = DeltaLayer.random(num_k_heads, num_v_heads, head_dim, num_slots=5)
    layer.hold_some()
    for index in range(HELD + 1):
        others = settled(layer.state, layer.held)[[1, 3]]
        layer.wide_step(SLOTS, POSITIONS + index, layer.random_parts(len(SLOTS), matrices))
        layer.check_states(1e-5)
        assert torch.equal(settled(layer.state, layer.held)[[1, 3]], others)


def test_both_kernels_keep_the_same() -> None:
    torch.manual_seed(1)
    layer = DeltaLayer.random(2, 4, 64, num_slots=5)
    layer.hold_some()
    other = deepcopy(layer)
    for index in range(HELD + 1):
        parts = layer.random_parts(len(SLOTS), [(4, 1)])
        layer.wide_step(SLOTS, POSITIONS + index, parts)
        other.step(SLOTS, POSITIONS + index, parts[0][0])
        keys, errors = layer.held.split((2, 4), dim=1)
        expected_keys, expected_errors = other.held.split((2, 4), dim=1)
        assert torch.equal(layer.ring, other.ring)
        torch.testing.assert_close(keys, expected_keys, rtol=1e-6, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(errors, expected_errors, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert relative_error(layer.state, other.state) < 1e-6  # written by the same steps


def test_what_exceeds_f16_is_the_largest_that_does_not() -> None:
    torch.manual_seed(2)
    layer = DeltaLayer.random(1, 2, 64, num_slots=5)
    layer.weights.norm.mul_(1e6)
    out = layer.wide_step(SLOTS, POSITIONS, layer.random_parts(len(SLOTS), ONE))
    assert out.abs().max() == 65504


def test_no_product_lies_in_two_matrices() -> None:
    parts = [torch.zeros(2, 3, 200), torch.zeros(1, 3, 128)]
    with pytest.raises(AssertionError):
        ProjectedParts.of(parts, 256, 2, 32)
    found = ProjectedParts.of([torch.zeros(2, 3, 256), torch.zeros(1, 3, 68)], 256, 2, 32)
    assert [x.shape for x in (found.qkv, found.z, found.alpha, found.beta)] == [
        (2, 3, 256), (1, 3, 64), (1, 3, 2), (1, 3, 2)]
