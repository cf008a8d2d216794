"""The delta rule's step in two launches on the card, as wide batches of real shapes run it."""

from __future__ import annotations

import pytest
import torch

from kernels.held_updates import HELD
from tests.kernels.delta_layer import Layer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("num_seqs", [16, 64, 128])
@pytest.mark.parametrize(("num_v_heads", "cuts"), [(48, ((1, 3), (3, 5))), (32, ((2, 2), (2, 8)))])
def test_steps_follow_the_reference(
    num_v_heads: int, cuts: tuple[tuple[int, int], ...], num_seqs: int, pdl: bool
) -> None:
    torch.manual_seed(num_seqs)
    layer = Layer.random(16, num_v_heads, 128, num_seqs + 1, "cuda")
    slots = torch.randperm(num_seqs + 1, device="cuda")[:num_seqs]
    positions = torch.randint(0, 999, (num_seqs,), device="cuda")
    if pdl and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("no programmatic launches on this card")
    for index in range(HELD + 2):
        layer.wide_step(slots, positions + index, cuts, pdl)
        layer.check_states(1e-5)
