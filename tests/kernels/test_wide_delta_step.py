"""A Gated DeltaNet decode step in two launches equals the float32 reference over several steps, and keeps what the step
in one launch keeps."""

from __future__ import annotations

import pytest
import torch

from kernels.held_updates import HELD
from tests.kernels.delta_layer import NUM_SLOTS, Layer

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # interpreter's loop bounds
ONE, TWO, THREE, FOUR = ((4, 2),), ((1, 3), (3, 5)), ((1, 2), (1, 1), (2, 1)), ((1, 1), (1, 3), (1, 4), (1, 2))


@pytest.mark.parametrize("cuts", [ONE, TWO, THREE, FOUR], ids=len)
@pytest.mark.parametrize(("num_k_heads", "num_v_heads", "dim"), [(2, 4, 64), (1, 2, 128), (2, 8, 16), (2, 4, 32)])
def test_steps_follow_the_reference(
    num_k_heads: int, num_v_heads: int, dim: int, cuts: tuple[tuple[int, int], ...]
) -> None:
    torch.manual_seed(0)
    layer = Layer.random(num_k_heads, num_v_heads, dim)
    slots, positions = torch.tensor([2, 0]), torch.tensor([0, 7])
    before = layer.state.clone()
    for index in range(HELD + 2):
        layer.wide_step(slots, positions + index, cuts)
        layer.check_states(1e-5)
        assert torch.equal(layer.state[1], before[1])
        assert torch.equal(layer.state[0], before[0]) == (index + 1 < HELD)  # written by one step in so many


def test_both_forms_take_turns() -> None:
    """As batches grow and shrink: what one holds back, the other goes on with."""
    torch.manual_seed(1)
    layer, positions = Layer.random(1, 2), torch.tensor([5, 9, 3, 0])
    for index, slots in enumerate(([0, 1, 3], [3, 0], [1, 2, 0, 3], [2], [0, 3, 1], [3, 1], [0, 2, 1])):
        chosen = torch.tensor(slots)
        if index % 2:
            layer.step(chosen, positions[chosen])
        else:
            layer.wide_step(chosen, positions[chosen], TWO)
        positions[chosen] += 1
        layer.check_states(1e-5)
    layer.prompt(1, int(positions[1]), 5)
    positions[1] += 5
    layer.wide_step(torch.arange(NUM_SLOTS), positions, ONE)
    layer.check_states(5e-3)
