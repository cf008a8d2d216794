"""Policies, as seen in the steps that the scheduler makes: who gets how many tokens, and how long anybody waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.config import SchedulerConfig
from sparkinfer.engine.policy import make_policy
from tests.engine.scheduling import add, give, make_scheduler, make_sequence, shape

POLICIES = ["continuous", "chunked", "priority"]


def tokens_of(output) -> dict[int, int]:
    return {row.sequence.request_id: row.num_tokens for row in output.scheduled}


@pytest.mark.parametrize(("policy", "first_step"), [("continuous", 16), ("chunked", 4), ("priority", 16)])
def test_a_lone_prompt_takes_the_whole_step_unless_steps_are_to_be_short(policy, first_step):
    scheduler = make_scheduler(policy=policy, prefill_chunk_tokens=4, max_num_batched_tokens=16)
    add(scheduler, make_sequence(1, [1] * 40))
    assert tokens_of(scheduler.schedule()) == {1: first_step}


@pytest.mark.parametrize(
    ("policy", "second_step"), [("continuous", {1: 4, 2: 4, 3: 2}), ("chunked", {1: 4}), ("priority", {1: 10})]
)
def test_prompts_share_a_step(policy, second_step):
    scheduler = make_scheduler(policy=policy, prefill_chunk_tokens=4, max_num_batched_tokens=10, num_blocks=64)
    add(scheduler, *(make_sequence(i, [1] * 40) for i in (1, 2, 3)))
    assert tokens_of(scheduler.schedule()) == second_step
    assert tokens_of(scheduler.schedule()) == second_step


@pytest.mark.parametrize("policy", POLICIES)
def test_what_mixes_with_decodes_is_bounded(policy):
    scheduler = make_scheduler(
        policy=policy, prefill_chunk_tokens=4, prefill_mix_max_tokens=6, max_num_batched_tokens=20, num_blocks=64
    )
    add(scheduler, make_sequence(1, [1]))
    scheduler.schedule()
    add(scheduler, *(make_sequence(i, [1] * 40) for i in (2, 3, 4)))
    expected = {1: 1, 2: 4} if policy == "chunked" else {1: 1, 2: 4, 3: 2}
    assert tokens_of(scheduler.schedule()) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_prompt_neither_waits_for_streams_nor_holds_them_up_by_more_than_a_chunk(policy):
    """32k tokens arrive while 16 sequences decode: each of them gets a token in every step, which has one chunk."""
    num_prompt_tokens, chunk = 32_768, 512
    scheduler = make_scheduler(
        num_blocks=3000, block_size=16, max_model_len=40_000, policy=policy, prefill_chunk_tokens=chunk
    )
    streams = [make_sequence(i, [1], max_tokens=1000) for i in range(16)]
    add(scheduler, *streams)
    give(scheduler, scheduler.schedule())
    long = make_sequence(99, [1] * num_prompt_tokens, max_tokens=5)
    add(scheduler, long)
    num_steps = 0
    while long.first_token_at is None:
        output = scheduler.schedule()
        tokens = tokens_of(output)
        assert all(tokens[stream.request_id] == 1 for stream in streams)
        assert 0 < tokens[99] <= chunk
        give(scheduler, output)
        num_steps += 1
    assert num_steps == num_prompt_tokens // chunk


@pytest.mark.parametrize("policy", ["continuous", "chunked"])
@pytest.mark.parametrize("num_streams", [0, 4])
def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one(policy, num_streams):
    """The room for prompts is less than a chunk, so that the long one could take all of it."""
    scheduler = make_scheduler(
        num_blocks=3000, block_size=16, max_model_len=40_000, policy=policy, prefill_chunk_tokens=1024,
        prefill_mix_max_tokens=512, max_num_batched_tokens=1024,
    )
    add(scheduler, *(make_sequence(i, [1], max_tokens=1000) for i in range(num_streams)))
    long = make_sequence(98, [1] * 20_000)
    add(scheduler, long)
    for _ in range(2):
        give(scheduler, scheduler.schedule())
    short, longer = make_sequence(99, [1] * 100), make_sequence(100, [1] * 20_000)
    add(scheduler, short, longer)
    output = scheduler.schedule()
    tokens = tokens_of(output)
    assert tokens[99] == 100
    assert tokens[98] >= 256
    assert tokens[100] > 0
    give(scheduler, output)
    assert short.first_token_at is not None
    assert long.first_token_at is None


def test_a_prompt_leaves_nothing_to_those_that_cannot_start():
    scheduler = make_scheduler(
        num_blocks=66, block_size=16, max_model_len=1024, prefill_chunk_tokens=64, max_num_batched_tokens=64
    )
    add(scheduler, make_sequence(1, [1] * 500), make_sequence(2, [1] * 900))
    given = [tokens_of(scheduler.schedule())[1] for _ in range(4)]
    assert given == [32, 64, 64, 64]


def test_an_urgent_prompt_takes_the_step_before_worse_decodes():
    scheduler = make_scheduler(policy="priority", prefill_chunk_tokens=4, max_num_batched_tokens=10)
    add(scheduler, make_sequence(1, [1], priority=1), make_sequence(2, [1], priority=-1))
    give(scheduler, scheduler.schedule())
    add(scheduler, make_sequence(3, [1] * 12, priority=0))
    assert shape(scheduler.schedule()) == [(2, 1, 1, True), (3, 0, 4, False), (1, 1, 1, True)]
    scheduler.abort(2, 1.0)
    assert shape(scheduler.schedule()) == [(3, 4, 8, True), (1, 2, 1, True)]
    add(scheduler, make_sequence(4, [1] * 12, priority=-2))
    assert shape(scheduler.schedule()) == [(4, 0, 10, False)]
    assert shape(scheduler.schedule()) == [(4, 10, 2, True), (3, 12, 1, True), (1, 3, 1, True)]


def test_an_urgent_request_takes_the_place_of_a_worse_one():
    scheduler = make_scheduler(policy="priority", max_num_seqs=2)
    add(scheduler, make_sequence(1, [1], priority=5), make_sequence(2, [1], priority=6))
    give(scheduler, scheduler.schedule())
    add(scheduler, make_sequence(3, [1], priority=6))
    assert not scheduler.schedule().num_preempted
    add(scheduler, make_sequence(4, [1], priority=4))
    output = scheduler.schedule()
    assert output.num_preempted == 1
    assert [row.sequence.request_id for row in output.scheduled] == [4, 1]
    scheduler.check_integrity()


def test_the_other_policies_let_the_worse_one_go_on():
    scheduler = make_scheduler(policy="continuous", max_num_seqs=1)
    add(scheduler, make_sequence(1, [1], priority=5))
    give(scheduler, scheduler.schedule())
    add(scheduler, make_sequence(2, [1], priority=-5))
    output = scheduler.schedule()
    assert (output.num_preempted, tokens_of(output)) == (0, {1: 1})


@given(
    st.sampled_from(POLICIES), st.integers(1, 64), st.integers(0, 64), st.integers(0, 64), st.integers(0, 64),
    st.integers(0, 64), st.booleans(), st.booleans(),
)
def test_a_step_never_holds_more_than_it_may(
    policy, most, chunk, mixed, num_decodes, num_prompt_tokens, is_alone, is_last
):
    config = SchedulerConfig(
        policy=policy, max_num_batched_tokens=most, prefill_chunk_tokens=chunk, prefill_mix_max_tokens=mixed
    )
    more = make_policy(config).chunk_tokens(num_decodes, num_prompt_tokens, is_alone, is_last)
    if more > 0:
        assert num_decodes + num_prompt_tokens + more <= most
        if num_decodes and mixed:
            assert num_prompt_tokens + more <= mixed
        if num_decodes and chunk:
            assert more <= chunk
    if not num_decodes and not num_prompt_tokens:
        assert more > 0
