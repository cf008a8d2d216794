"""A Gated DeltaNet layer with random weights and what its slots keep, for the kernels and again for the references."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import accumulate

import torch
from torch import Tensor

from kernels.delta_rows import ProjectedParts, row_width
from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.gated_delta_step import DeltaNetWeights, gated_delta_step
from kernels.held_updates import HELD
from kernels.reference import delta_rule_chunks as chunks_reference
from kernels.reference import gated_delta_step as reference
from kernels.reference.held_updates import settled
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.spans import Spans, pack_spans
from kernels.wide_delta_step import wide_delta_step
from tests.kernels.activations import poisoned_activation, relative_error
from tests.kernels.emulated import in_order

EPS = 1e-6
NUM_SLOTS = 4


@dataclass
class Layer:
    """Weights, pools, and the references' pools."""

    weights: DeltaNetWeights
    ring: Tensor
    state: Tensor
    held: Tensor
    expected_ring: Tensor
    expected_state: Tensor

    @classmethod
    def random(
        cls, num_k_heads: int, num_v_heads: int, dim: int = 64, num_slots: int = NUM_SLOTS, device: str = "cpu"
    ) -> Layer:
        """Slots as sequences of some length leave them that hold no update."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device)

        channels = (2 * num_k_heads + num_v_heads) * dim
        small = -torch.rand(num_v_heads, device=device), normal(num_v_heads), torch.rand(dim, device=device) + 0.5
        weights = DeltaNetWeights(normal(4, channels), *small, num_k_heads)
        ring, state = normal(num_slots, 4, channels), normal(num_slots, num_v_heads, dim, dim)
        held = torch.full((num_slots, num_k_heads + num_v_heads, HELD, dim), torch.nan, device=device)
        held[:, num_k_heads:, -1] = 0
        return cls(weights, ring, state, held, ring.clone(), state.clone())

    @property
    def pools(self) -> list[Tensor]:
        return [self.ring, self.state, self.held, self.expected_ring, self.expected_state]

    @property
    def _widths(self) -> list[int]:
        """Of q | k | v, z, alpha, beta."""
        num_v_heads, dim = self.state.shape[1:3]
        return [self.ring.shape[2], num_v_heads * dim, num_v_heads, num_v_heads]

    def step(self, slots: Tensor, positions: Tensor) -> None:
        """One token of each slot, compared."""
        num_v_heads, dim = self.state.shape[1:3]
        num_seqs = len(slots)
        projected = torch.randn(num_seqs, sum(self._widths)) * 3
        out = poisoned_activation(num_seqs, num_v_heads * dim)
        gated_delta_step(projected, self.weights, self.ring, self.state, self.held, slots, positions, out)
        expected = self._expected(projected, slots, positions)
        factor = torch.rsqrt(out.square_sums.reshape(num_seqs, num_v_heads, -1).sum(-1) / dim + EPS)
        actual = dequantize_rows(out) * factor.repeat_interleave(dim, dim=1)
        assert relative_error(actual, dequantize_rows(quantize_rows(expected))) < 2e-3

    def wide_step(self, slots: Tensor, positions: Tensor, cuts: tuple[tuple[int, int], ...], pdl: bool = False) -> None:
        """The same by `wide_delta_step`. cuts: (how many of `_widths`, parts) of each of the layer's products."""
        num_seqs, (num_v_heads, dim), device = len(slots), self.state.shape[1:3], self.state.device
        bounds = [0, *accumulate(self._widths)]
        products, first = [], 0
        for count, num_parts in cuts:
            width = bounds[first + count] - bounds[first]
            padded = torch.full((num_parts, num_seqs, -(-width // 16) * 16), torch.nan, device=device)
            padded[:, :, :width] = torch.randn(num_parts, num_seqs, width, device=device) * 3 * num_parts**-0.5
            products.append(padded[:, :, :width])
            first += count
        rows = torch.full((num_seqs, self.held.shape[1], row_width(dim)), torch.nan, device=device)
        out = torch.full((num_seqs, num_v_heads * dim), torch.nan, device=device).half()
        wide_delta_step(ProjectedParts.of(products, self.ring.shape[2], num_v_heads, dim), self.weights, self.ring,
                        self.state, self.held, slots, positions, rows, out, EPS, pdl)
        projected = torch.cat([reduce(torch.add, product) for product in products], dim=1)  # in the kernel's order
        expected = self._expected(projected, slots, positions)
        assert relative_error(in_order(out), expected) < 1e-3  # f16

    def _expected(self, projected: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        weights = self.weights
        expected = reference.gated_delta_step(
            projected, weights.conv, weights.a, weights.dt_bias, weights.norm, weights.num_k_heads,
            self.expected_ring, self.expected_state, slots, positions, EPS,
        )
        assert torch.equal(self.ring, self.expected_ring)
        return expected

    def prompt(self, slot: int, start: int, num_tokens: int) -> None:
        """Some tokens of one slot, compared."""
        (num_v_heads, dim), num_k_heads = self.state.shape[1:3], self.weights.num_k_heads
        heads = torch.randn(num_tokens, 2 * num_k_heads + num_v_heads, dim)
        heads[:, : 2 * num_k_heads] /= heads[:, : 2 * num_k_heads].norm(dim=-1, keepdim=True)
        alpha, beta = torch.randn(2, num_tokens, num_v_heads)
        inputs = DeltaRuleInputs(heads.half(), alpha, beta, self.weights.a, self.weights.dt_bias, num_k_heads)
        packed = pack_spans([(slot, start, num_tokens)], 1, num_tokens)
        spans = Spans(*map(torch.from_numpy, packed), torch.zeros(1, 1, dtype=torch.int32))
        out, expected = (torch.full((num_tokens, num_v_heads * dim), torch.nan).half() for _ in range(2))
        terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
        delta_rule_chunks(inputs, spans, terms)
        delta_rule_walk(inputs, terms, spans, self.state, self.held, out)
        nothing = torch.zeros_like(self.held)
        chunks_reference.delta_rule(inputs, spans, self.expected_state, nothing, expected)
        assert relative_error(out.float(), expected.float()) < 5e-3
        assert torch.equal(settled(self.state, self.held)[slot], self.state[slot])

    def check_states(self, tolerance: float) -> None:
        assert relative_error(settled(self.state, self.held), self.expected_state) < tolerance
