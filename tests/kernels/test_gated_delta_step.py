"""A Gated DeltaNet decode step in one kernel equals the float32 reference over several steps, and states with what
they lack are what the reference keeps, whatever steps and prompts have taken turns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.held_updates import HELD
from tests.kernels.delta_layer import NUM_SLOTS, Layer

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # interpreter's loop bounds


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
