"""The delta rule's step of 16 rows and more on the card, at widths of real models, against the float32 reference."""

from __future__ import annotations

import pytest
import torch

from kernels.held_updates import HELD
from tests.kernels.delta_layer import DeltaLayer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(400),
]
JOINED, APART = [(4, 2)], [(1, 3), (1, 5), (2, 8)]


@pytest.mark.parametrize("num_seqs", [16, 32, 64, 128])
@pytest.mark.parametrize(("num_v_heads", "matrices"), [(48, JOINED), (48, APART), (32, APART)])
def test_steps_follow_the_reference(num_v_heads: int, matrices: list[tuple[int, int]], num_seqs: int) -> None:
    """Slots in any order; each writes its state at another step, and some two times."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(num_seqs)
    pdl = torch.cuda.get_device_capability() >= (9, 0)
    layer = DeltaLayer.random(16, num_v_heads, 128, num_seqs + 2, "cuda")
    layer.hold_some()
    slots = torch.randperm(num_seqs + 2, device="cuda")[:num_seqs]
    positions = torch.randint(0, 1000, (num_seqs,), device="cuda")
    for index in range(HELD + 1):
        layer.wide_step(slots, positions + index, layer.random_parts(num_seqs, matrices), pdl)
        layer.check_states(1e-5)


@pytest.mark.parametrize("head_dim", [16, 32, 64])
def test_smaller_heads(head_dim: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(head_dim)
    layer = DeltaLayer.random(2, 8, head_dim, 18, "cuda")
    layer.hold_some()
    slots, positions = torch.randperm(18, device="cuda")[:16], torch.arange(16, device="cuda")
    for index in range(HELD + 1):
        layer.wide_step(slots, positions + index, layer.random_parts(16, JOINED))
        layer.check_states(1e-5)


def test_both_kernels_take_turns() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    layer = DeltaLayer.random(16, 32, 128, 20, "cuda")
    layer.hold_some()
    slots, positions = torch.randperm(20, device="cuda")[:16], torch.arange(16, device="cuda")
    for index in range(2 * HELD):
        if index % 3 == 1:
            layer.step(slots[:8], positions[:8])
            positions[:8] += 1
        else:
            layer.wide_step(slots, positions, layer.random_parts(16, APART))
            positions += 1
        layer.check_states(1e-5)
