"""A Gated DeltaNet decode step in one kernel equals the float32 reference over several steps, and states with what
they lack are what the reference keeps, whatever steps and prompts have taken turns."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.gated_delta_step import DeltaNetWeights, gated_delta_step
from kernels.held_updates import HELD
from kernels.reference import delta_rule_chunks as chunks_reference
from kernels.reference import gated_delta_step as reference
from kernels.reference.held_updates import settled
from kernels.reference.quant_gemv import dequantize_rows, quantize_rows
from kernels.spans import Spans, pack_spans
from tests.kernels.activations import poisoned_activation, relative_error

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # interpreter's loop bounds
EPS = 1e-6
NUM_SLOTS, DIM = 4, 64


@dataclass
class Layer:
    """A layer's weights and, twice, what its slots keep: for the kernels and for the references."""

    weights: DeltaNetWeights
    ring: Tensor
    state: Tensor
    held: Tensor
    expected_ring: Tensor
    expected_state: Tensor

    @classmethod
    def random(cls, num_k_heads: int, num_v_heads: int) -> Layer:
        """Slots as sequences of some length leave them that hold no update."""
        channels = (2 * num_k_heads + num_v_heads) * DIM
        weights = DeltaNetWeights(torch.randn(4, channels), -torch.rand(num_v_heads), torch.randn(num_v_heads),
                                  torch.rand(DIM) + 0.5, num_k_heads)
        ring, state = torch.randn(NUM_SLOTS, 4, channels), torch.randn(NUM_SLOTS, num_v_heads, DIM, DIM)
        held = torch.full((NUM_SLOTS, num_k_heads + num_v_heads, HELD, DIM), torch.nan)
        held[:, num_k_heads:, -1] = 0
        return cls(weights, ring, state, held, ring.clone(), state.clone())

    @property
    def pools(self) -> list[Tensor]:
        return [self.ring, self.state, self.held, self.expected_ring, self.expected_state]

    def step(self, slots: Tensor, positions: Tensor) -> None:
        """One token of each slot, compared."""
        weights, num_v_heads = self.weights, self.state.shape[1]
        num_seqs = len(slots)
        projected = torch.randn(num_seqs, self.ring.shape[2] + num_v_heads * DIM + 2 * num_v_heads) * 3
        out = poisoned_activation(num_seqs, num_v_heads * DIM)
        gated_delta_step(projected, weights, self.ring, self.state, self.held, slots, positions, out)
        expected = reference.gated_delta_step(
            projected, weights.conv, weights.a, weights.dt_bias, weights.norm, weights.num_k_heads,
            self.expected_ring, self.expected_state, slots, positions, EPS,
        )
        assert torch.equal(self.ring, self.expected_ring)
        factor = torch.rsqrt(out.square_sums.reshape(num_seqs, num_v_heads, -1).sum(-1) / DIM + EPS)
        actual = dequantize_rows(out) * factor.repeat_interleave(DIM, dim=1)
        assert relative_error(actual, dequantize_rows(quantize_rows(expected))) < 2e-3

    def prompt(self, slot: int, start: int, num_tokens: int) -> None:
        """Some tokens of one slot, compared."""
        num_v_heads, num_k_heads = self.state.shape[1], self.weights.num_k_heads
        heads = torch.randn(num_tokens, 2 * num_k_heads + num_v_heads, DIM)
        heads[:, : 2 * num_k_heads] /= heads[:, : 2 * num_k_heads].norm(dim=-1, keepdim=True)
        alpha, beta = torch.randn(2, num_tokens, num_v_heads)
        inputs = DeltaRuleInputs(heads.half(), alpha, beta, self.weights.a, self.weights.dt_bias, num_k_heads)
        packed = pack_spans([(slot, start, num_tokens)], 1, num_tokens)
        spans = Spans(*map(torch.from_numpy, packed), torch.zeros(1, 1, dtype=torch.int32))
        out, expected = (torch.full((num_tokens, num_v_heads * DIM), torch.nan).half() for _ in range(2))
        terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
        delta_rule_chunks(inputs, spans, terms)
        delta_rule_walk(inputs, terms, spans, self.state, self.held, out)
        nothing = torch.zeros_like(self.held)
        chunks_reference.delta_rule(inputs, spans, self.expected_state, nothing, expected)
        assert relative_error(out.float(), expected.float()) < 5e-3
        assert torch.equal(settled(self.state, self.held)[slot], self.state[slot])

    def check_states(self, tolerance: float) -> None:
        assert relative_error(settled(self.state, self.held), self.expected_state) < tolerance


@pytest.mark.parametrize(("num_k_heads", "num_v_heads"), [(2, 4), (1, 4), (2, 2)])
def test_steps_follow_the_reference(num_k_heads: int, num_v_heads: int) -> None:
    torch.manual_seed(0)
    layer = Layer.random(num_k_heads, num_v_heads)
    slots, positions = torch.tensor([2, 0]), torch.tensor([0, 7])
    before = layer.state.clone()
    for index in range(HELD + 2):
        layer.step(slots, positions + index)
        layer.check_states(1e-5)
        assert torch.equal(layer.state[1], before[1])
        assert torch.equal(layer.state[0], before[0]) == (index + 1 < HELD)  # written by one step in so many


@pytest.mark.parametrize("start", [0, 9])
@pytest.mark.parametrize("num_steps", range(HELD + 1))
def test_prompts_take_what_steps_held_back(num_steps: int, start: int) -> None:
    """All of it where the sequence goes on, none where one begins in its slot."""
    torch.manual_seed(num_steps)
    layer = Layer.random(1, 2)
    slots = torch.tensor([3, 1])
    for index in range(num_steps):
        layer.step(slots, torch.tensor([index, index + 3]))
    layer.prompt(1, start, 5)
    layer.check_states(5e-3)
    layer.step(slots, torch.tensor([num_steps, start + 5]))
    layer.check_states(5e-3)


TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=3, unique=True),
                  st.integers(1, HELD)),
        st.tuples(st.just("prompt"), st.integers(0, NUM_SLOTS - 1), st.sampled_from([1, 3, 65])),
        st.tuples(st.just("copy"), st.integers(0, NUM_SLOTS - 1), st.integers(0, NUM_SLOTS - 1)),
    ),
    min_size=2, max_size=5,
)


@given(turns=TURNS, seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_any_turns(turns: list[tuple], seed: int) -> None:  # type: ignore[type-arg]
    """Steps of some slots, a prompt's tokens, a slot's contents taken elsewhere."""
    torch.manual_seed(seed)
    layer, positions = Layer.random(1, 2), torch.full((NUM_SLOTS,), 5)
    for kind, first, second in turns:
        if kind == "steps":
            for _ in range(second):
                layer.step(torch.tensor(first), positions[first])
                positions[first] += 1
        elif kind == "prompt":
            layer.prompt(first, int(positions[first]), second)
            positions[first] += second
        else:
            for pool in (*layer.pools, positions):
                pool[second] = pool[first]
        layer.check_states(1e-2)
