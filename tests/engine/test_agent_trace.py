"""Agents resend everything at every turn; only what is new may be computed again."""

from __future__ import annotations

import random

import pytest

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

BLOCK_SIZE = 16
SLACK_TOKENS = 2 * BLOCK_SIZE
NUM_TURNS = 30
OPENER, EOS = 1, 0


def answer_to(prompt: list[int]) -> list[int]:
    rng = random.Random(len(prompt) * 7919 + prompt[-1])
    return [rng.randrange(100, 1000) for _ in range(rng.randrange(5, 60))] + [EOS]


class Agents:
    """Conversations over one engine; `has_state`: the model can only be resumed at checkpoints."""

    def __init__(self, has_state: bool, num_blocks: int = 8192) -> None:
        self.cache = make_cache(
            PrefixCacheConfig(), num_blocks=num_blocks, block_size=BLOCK_SIZE,
            bytes_per_snapshot=(16 << 20) if has_state else 0, free=32 << 30,
        )
        runner = ScriptedModelRunner(answer_to, num_blocks, BLOCK_SIZE)
        self.engine = Engine(Scheduler(SchedulerConfig(max_num_seqs=8), self.cache, 100_000), runner, self)
        self.rng = random.Random(1)
        self.num_requests = 0
        self.answers: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}

    def publish(self, events: StepEvents) -> None:
        for sequence, token_id in zip(events.sequences, events.token_ids):
            self.answers.setdefault(sequence.request_id, []).append(token_id)
        for sequence in events.finished:
            self.cached[sequence.request_id] = sequence.num_cached_tokens

    def text(self, num_tokens: int) -> list[int]:
        return [self.rng.randrange(100, 1000) for _ in range(num_tokens)]

    def turn(self) -> list[int]:
        """A user's message or a tool's result, and the header of the answer."""
        return [OPENER, 2, *self.text(self.rng.randrange(3, 400)), EOS, OPENER, 3]

    def ask(self, prompts: list[list[int]]) -> list[tuple[list[int], int]]:
        """All at once; (history that the next turn starts from, cached tokens) of each."""
        ids = range(self.num_requests, self.num_requests + len(prompts))
        self.num_requests += len(prompts)
        for request_id, prompt in zip(ids, prompts):
            turns = tuple(i for i, token_id in enumerate(prompt) if token_id == OPENER)
            sampling = SamplingParams(max_tokens=100, temperature=0.0, stop_token_ids=(EOS,))
            self.engine.submit(RequestId(request_id), 0, prompt, sampling, hints=PrefixHints(turn_starts=turns))
        while self.engine.has_work:
            self.engine.step()
        return [
            ([*prompt, *self.answers[request_id], EOS], self.cached[request_id])
            for request_id, prompt in zip(ids, prompts)
        ]


@pytest.mark.parametrize("has_state", [False, True], ids=["attention", "hybrid"])
def test_an_agent_recomputes_only_what_is_new(has_state):
    agents = Agents(has_state)
    system = [OPENER, 4, *agents.text(8190)]
    histories = [system] * 4
    for turn in range(NUM_TURNS):
        news = [agents.turn() for _ in histories]
        prompts = [history + new for history, new in zip(histories, news)]
        replies = agents.ask(prompts)
        for number, (history, cached) in enumerate(replies):
            is_first = turn == 0 and number == 0
            assert cached >= (0 if is_first else len(histories[number]) - SLACK_TOKENS), (turn, number)
            histories[number] = history
    total = sum(map(len, histories))
    assert agents.engine.stats.num_computed_tokens < total - 3 * len(system) + 4 * NUM_TURNS * SLACK_TOKENS


@pytest.mark.parametrize("has_state", [False, True], ids=["attention", "hybrid"])
def test_edited_and_repeated_turns_depart_from_what_is_left(has_state):
    agents = Agents(has_state)
    history = [OPENER, 4, *agents.text(2000)]
    starts = []
    for _ in range(12):
        starts.append(len(history))
        prompt = history + agents.turn()
        ((history, _),) = agents.ask([prompt])
    ((again, cached),) = agents.ask([prompt])
    assert cached >= len(prompt) - SLACK_TOKENS
    assert again == history
    for turn in (9, 4, 1):
        edited = history[: starts[turn]] + agents.turn()
        ((_, cached),) = agents.ask([edited])
        assert cached >= starts[turn] - SLACK_TOKENS
    ((_, cached),) = agents.ask([history + agents.turn()])
    assert cached >= len(history) - SLACK_TOKENS


@pytest.mark.parametrize("has_state", [False, True], ids=["attention", "hybrid"])
def test_a_cold_history_can_be_edited_at_any_turn(has_state):
    agents = Agents(has_state)
    history, starts = [OPENER, 4, *agents.text(500)], []
    for _ in range(10):
        starts.append(len(history))
        history += [OPENER, 2, *agents.text(100), EOS, OPENER, 3, *agents.text(150), EOS]
    agents.ask([history + agents.turn()])
    for start in starts[1:]:
        ((_, cached),) = agents.ask([history[:start] + agents.turn()])
        assert cached >= start - SLACK_TOKENS


def test_conversations_evict_each_other_oldest_first():
    agents = Agents(has_state=False, num_blocks=300)
    histories = [[OPENER, 4, *agents.text(1500)] for _ in range(4)]
    for number in (0, 1, 2, 3):
        agents.ask([histories[number]])
    cached = {number: agents.ask([histories[number] + agents.turn()])[0][1] for number in (3, 2, 0)}
    assert cached[3] >= 1500 - SLACK_TOKENS
    assert cached[0] < 1500 - SLACK_TOKENS
    agents.engine.check_integrity()
