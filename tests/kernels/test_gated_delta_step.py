"""A Gated DeltaNet decode step in one kernel equals the float32 reference over several steps, and states with what
they lack are what the reference keeps, whatever steps and prompts have taken turns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.delta_rule_chunks import ChunkTerms, DeltaRuleInputs, delta_rule_chunks
from kernels.delta_rule_walk import delta_rule_walk
from kernels.held_updates import HELD
from kernels.reference import delta_rule_chunks as chunks_reference
from kernels.reference.held_updates import settled
from kernels.spans import Spans, pack_spans
from tests.kernels.activations import relative_error
from tests.kernels.delta_layer import DeltaLayer

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # interpreter's loop bounds
NUM_SLOTS, DIM = 4, 64


def random_layer(num_k_heads: int, num_v_heads: int) -> DeltaLayer:
    return DeltaLayer.random(num_k_heads, num_v_heads, DIM, NUM_SLOTS)


def run_prompt(layer: DeltaLayer, slot: int, start: int, num_tokens: int) -> None:
    """Some tokens of one slot, compared."""
    num_v_heads, num_k_heads = layer.num_v_heads, layer.weights.num_k_heads
    heads = torch.randn(num_tokens, 2 * num_k_heads + num_v_heads, DIM)
    heads[:, : 2 * num_k_heads] /= heads[:, : 2 * num_k_heads].norm(dim=-1, keepdim=True)
    alpha, beta = torch.randn(2, num_tokens, num_v_heads)
    inputs = DeltaRuleInputs(heads.half(), alpha, beta, layer.weights.a, layer.weights.dt_bias, num_k_heads)
    packed = pack_spans([(slot, start, num_tokens)], 1, num_tokens)
    spans = Spans(*map(torch.from_numpy, packed), torch.zeros(1, 1, dtype=torch.int32))
    out, expected = (torch.full((num_tokens, num_v_heads * DIM), torch.nan).half() for _ in range(2))
    terms = ChunkTerms.empty(inputs, spans.chunks.shape[0])
    delta_rule_chunks(inputs, spans, terms)
    delta_rule_walk(inputs, terms, spans, layer.state, layer.held, out)
    nothing = torch.zeros_like(layer.held)
    chunks_reference.delta_rule(inputs, spans, layer.expected_state, nothing, expected)
    assert relative_error(out.float(), expected.float()) < 5e-3
    assert torch.equal(settled(layer.state, layer.held)[slot], layer.state[slot])


@pytest.mark.parametrize(("num_k_heads", "num_v_heads"), [(2, 4), (1, 4), (2, 2)])
def test_steps_follow_the_reference(num_k_heads: int, num_v_heads: int) -> None:
    torch.manual_seed(0)
    layer = random_layer(num_k_heads, num_v_heads)
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
    layer = random_layer(1, 2)
    slots = torch.tensor([3, 1])
    for index in range(num_steps):
        layer.step(slots, torch.tensor([index, index + 3]))
    run_prompt(layer, 1, start, 5)
    layer.check_states(5e-3)
    layer.step(slots, torch.tensor([num_steps, start + 5]))
    layer.check_states(5e-3)


TURNS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["steps", "wide steps"]),
                  st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=3, unique=True), st.integers(1, HELD)),
        st.tuples(st.just("prompt"), st.integers(0, NUM_SLOTS - 1), st.sampled_from([1, 3, 65])),
        st.tuples(st.just("copy"), st.integers(0, NUM_SLOTS - 1), st.integers(0, NUM_SLOTS - 1)),
    ),
    min_size=2, max_size=5,
)


@given(turns=TURNS, seed=st.integers(0, 1000))
@settings(max_examples=16, deadline=None)
def test_any_turns(turns: list[tuple], seed: int) -> None:  # type: ignore[type-arg]
    """Steps of some slots by either kernel, a prompt's tokens, a slot's contents taken elsewhere."""
    torch.manual_seed(seed)
    layer, positions = random_layer(1, 2), torch.full((NUM_SLOTS,), 5)
    for kind, first, second in turns:
        if kind.endswith("steps"):
            for _ in range(second):
                if kind == "steps":
                    layer.step(torch.tensor(first), positions[first])
                else:
                    layer.wide_step(torch.tensor(first), positions[first], layer.random_parts(len(first), [(4, 2)]))
                positions[first] += 1
        elif kind == "prompt":
            run_prompt(layer, first, int(positions[first]), second)
            positions[first] += second
        else:
            for pool in (*layer.pools, positions):
                pool[second] = pool[first]
        layer.check_states(1e-2)
