"""A Gated DeltaNet layer with random weights and what its slots keep, for tests of the kernels of its decode steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.delta_rows import ProjectedParts, row_width
from kernels.gated_delta_step import DeltaNetWeights, gated_delta_step
from kernels.held_updates import HELD
from kernels.reference import gated_delta_step as reference
from kernels.reference.held_updates import settled
from kernels.reference.pack_halves import F16_MAX
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.wide_delta_step import wide_delta_step
from tests.kernels.activations import poisoned_activation, relative_error
from tests.kernels.emulated import in_order
from tests.kernels.random_model import random_held

EPS = 1e-6


@dataclass
class DeltaLayer:
    """What the slots keep twice: for the kernels and for the references."""

    weights: DeltaNetWeights
    ring: Tensor
    state: Tensor
    held: Tensor
    expected_ring: Tensor
    expected_state: Tensor

    @classmethod
    def random(
        cls, num_k_heads: int, num_v_heads: int, head_dim: int, num_slots: int, device: str = "cpu"
    ) -> DeltaLayer:
        """Slots as sequences of some length leave them that hold no update."""

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, device=device)

        channels = (2 * num_k_heads + num_v_heads) * head_dim
        decays = -torch.rand(num_v_heads, device=device)
        norm = torch.rand(head_dim, device=device) + 0.5
        weights = DeltaNetWeights(normal(4, channels), decays, normal(num_v_heads), norm, num_k_heads)
        ring, state = normal(num_slots, 4, channels), normal(num_slots, num_v_heads, head_dim, head_dim)
        held = torch.full((num_slots, num_k_heads + num_v_heads, HELD, head_dim), torch.nan, device=device)
        held[:, num_k_heads:, -1] = 0
        return cls(weights, ring, state, held, ring.clone(), state.clone())

    def hold_some(self) -> None:
        """Any number of updates in each slot."""
        self.held = random_held(self.state, self.weights.num_k_heads)
        self.expected_state = settled(self.state, self.held)

    @property
    def num_v_heads(self) -> int:
        return self.state.shape[1]

    @property
    def head_dim(self) -> int:
        return self.state.shape[2]

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Of q | k | v, z, alpha and beta."""
        return self.ring.shape[2], self.num_v_heads * self.head_dim, self.num_v_heads, self.num_v_heads

    @property
    def pools(self) -> list[Tensor]:
        return [self.ring, self.state, self.held, self.expected_ring, self.expected_state]

    def step(self, slots: Tensor, positions: Tensor, projected: Tensor | None = None) -> None:
        """One token of each slot by `gated_delta_step`, compared."""
        if projected is None:
            (projected,) = self.random_parts(len(slots), [(4, 1)])[0]
        out = poisoned_activation(len(slots), self.widths[1], self.ring.device.type)
        gated_delta_step(projected, self.weights, self.ring, self.state, self.held, slots, positions, out)
        expected = self.expect(projected, slots, positions)
        squares = out.square_sums.reshape(len(slots), self.num_v_heads, -1).sum(-1)
        factor = torch.rsqrt(squares / self.head_dim + EPS)
        actual = dequantize_rows(out) * factor.repeat_interleave(self.head_dim, dim=1)
        assert relative_error(actual, dequantize_rows(quantize_rows(expected))) < 2e-3

    def random_parts(self, num_seqs: int, matrices: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Products of a layer's input; matrices: (how many of `widths` it makes, parts) of each."""
        found, first = [], 0
        for count, splits in matrices:
            width = sum(self.widths[first : first + count])
            found.append(torch.randn(splits, num_seqs, width, device=self.ring.device) * 3 * splits**-0.5)
            first += count
        return found

    def wide_step(self, slots: Tensor, positions: Tensor, parts: list[Tensor], pdl: bool = False) -> Tensor:
        """One token of each slot by `wide_delta_step`, compared; parts: of the layer's products. Returns the output."""
        projected = ProjectedParts.of(parts, self.widths[0], self.num_v_heads, self.head_dim)
        num_heads = self.weights.num_k_heads + self.num_v_heads
        rows = torch.full((len(slots), num_heads, row_width(self.head_dim)), torch.nan, device=self.ring.device)
        out = torch.full((len(slots), self.widths[1]), torch.nan, device=self.ring.device).half()
        wide_delta_step(projected, self.weights, self.ring, self.state, self.held, slots, positions, rows, out, EPS,
                        pdl)
        expected = self.expect(torch.cat([functools.reduce(torch.add, x) for x in parts], dim=1), slots, positions)
        actual = in_order(out)
        assert relative_error(actual, expected.clamp(-F16_MAX, F16_MAX)) < 1e-3
        return actual

    def expect(self, projected: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """The reference's step; the kernel has taken its own."""
        small = self.weights
        expected = reference.gated_delta_step(
            projected, small.conv, small.a, small.dt_bias, small.norm, small.num_k_heads, self.expected_ring,
            self.expected_state, slots, positions, EPS,
        )
        assert torch.equal(self.ring, self.expected_ring)
        return expected

    def check_states(self, tolerance: float) -> None:
        assert relative_error(settled(self.state, self.held), self.expected_state) < tolerance
