"""The convolution of a chunk equals the plain one, whatever was before it, and moves the ring on."""

from __future__ import annotations

import pytest
import torch

from kernels.causal_conv_silu import causal_conv_silu
from kernels.reference import causal_conv1d as reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("start", [0, 1, 6, 4096])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 19])
def test_equals_the_reference(num_tokens: int, start: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, 200, generator=generator).to(DEVICE)[:, :130]
    taps, ring = torch.randn(130, 4, generator=generator).to(DEVICE), torch.zeros(4, 130, device=DEVICE)
    if start:
        ring.copy_(torch.randn(4, 130, generator=generator))
    expected_ring = ring.clone()
    expected = reference.causal_conv_silu(x, taps, expected_ring, start)
    torch.testing.assert_close(causal_conv_silu(x, taps, ring, start), expected)
    assert torch.equal(ring, expected_ring)
