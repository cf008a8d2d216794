"""Rotation against the formula, element by element."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.reference.rope import (
    interleaved_axes,
    rope_angles,
    rope_halves,
    rope_interleaved,
    rope_inv_freq,
    yarn_inv_freq,
)

THETA = 10000.0


@pytest.mark.parametrize("n_rot", [8, 16])
@pytest.mark.parametrize("is_interleaved", [True, False])
def test_rotation_by_the_formula(n_rot: int, is_interleaved: bool) -> None:
    x = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 1, 7, 500, 4095])
    angles = rope_angles(positions, rope_inv_freq(n_rot, THETA))
    rotate = rope_interleaved if is_interleaved else rope_halves
    got = rotate(x, angles.cos(), angles.sin())
    expected = x.clone()
    for token, position in enumerate(positions.tolist()):
        for j in range(n_rot // 2):
            angle = position * THETA ** (-2 * j / n_rot)
            first, second = (2 * j, 2 * j + 1) if is_interleaved else (j, j + n_rot // 2)
            u, v = x[token, :, first], x[token, :, second]
            expected[token, :, first] = u * math.cos(angle) - v * math.sin(angle)
            expected[token, :, second] = v * math.cos(angle) + u * math.sin(angle)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(got[..., n_rot:], x[..., n_rot:], rtol=0, atol=0)


@pytest.mark.parametrize(("sections", "counts"), [((11, 11, 10, 0), [11, 11, 10]), ((3, 3, 2, 0), [3, 3, 2])])
def test_axes_of_interleaved_multimodal_rope(sections: tuple[int, ...], counts: list[int]) -> None:
    axes = interleaved_axes(sum(sections), sections)
    assert torch.bincount(axes).tolist() == counts
    assert axes[:6].tolist() == [0, 1, 2, 0, 1, 2]


def test_each_frequency_reads_its_own_axis() -> None:
    axes = interleaved_axes(8, (3, 3, 2, 0))
    inv_freq = rope_inv_freq(16, THETA)
    positions = torch.tensor([[1, 2], [30, 40], [500, 600]])
    angles = rope_angles(positions, inv_freq, axes)
    expected = torch.stack([positions[axis].float() * freq for axis, freq in zip(axes, inv_freq, strict=True)], dim=1)
    torch.testing.assert_close(angles, expected)


def test_text_positions_need_no_axes() -> None:
    positions = torch.arange(9)
    inv_freq, axes = rope_inv_freq(16, THETA), interleaved_axes(8, (3, 3, 2, 0))
    torch.testing.assert_close(
        rope_angles(positions.expand(3, -1), inv_freq, axes), rope_angles(positions, inv_freq), rtol=0, atol=0
    )


def test_yarn_by_the_formula() -> None:
    """theta 1e7, 32 times 8192 tokens, 128 dimensions: fast frequencies stay, slow ones are divided by the factor."""
    plain = rope_inv_freq(128, 1e7)
    inv_freq, magnitude = yarn_inv_freq(plain, 1e7, 32.0, 8192)
    assert magnitude == pytest.approx(0.1 * math.log(32) + 1)
    ratio = inv_freq / plain
    low = math.floor(128 * math.log(8192 / (2 * math.pi * 32)) / (2 * math.log(1e7)))
    high = math.ceil(128 * math.log(8192 / (2 * math.pi)) / (2 * math.log(1e7)))
    torch.testing.assert_close(ratio[: low + 1], torch.ones(low + 1))
    torch.testing.assert_close(ratio[high:], torch.full((64 - high,), 1 / 32))
    assert (ratio.diff() <= 1e-6).all()
