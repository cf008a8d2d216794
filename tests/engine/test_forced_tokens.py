"""Tokens that a grammar leaves no choice about: taken together, computed together, and the same in the end."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, cycle_script
from sparkinfer.request import FinishReason
from tests.engine.engines import EOS, make_engine
from tests.engine.hash_model import VOCAB_SIZE, HashModel, Rig
from tests.engine.test_masks import mask_of, run, submit

PROMPT = [3, 1, 4, 1, 5]


class Sentence:
    """A MaskSource for one row: what must come at a position and after it, as long as it is in `forced`."""

    def __init__(self, forced: dict[int, list[int]], allowed: set[int], vocab_size: int = VOCAB_SIZE) -> None:
        self._forced = forced
        self._allowed = allowed
        self._vocab_size = vocab_size
        self.num_asked = 0

    def ready(self, mask_row: int, position: int) -> np.ndarray:
        self.num_asked += 1
        forced = self.forced(mask_row, position)
        return mask_of({forced[0]} if forced else self._allowed, self._vocab_size)

    def forced(self, _: int, position: int) -> list[int]:
        start = max((p for p in self._forced if p <= position), default=None)
        return [] if start is None else self._forced[start][position - start :]


def random_sentence(seed: int) -> Sentence:
    rng, forced, position = random.Random(seed), {}, len(PROMPT)
    while position < 200:
        position += rng.randrange(3)
        tokens = [rng.randrange(1, VOCAB_SIZE - 1) for _ in range(rng.randrange(1, 9))]
        forced[position] = tokens
        position += len(tokens)
    return Sentence(forced, set(range(1, VOCAB_SIZE - 1)))


def answer(source: Sentence, *, jumps: bool, controls: dict | None = None, **rig: object) -> tuple[list[int], int]:
    """The tokens of one answer, beside two others, and the steps that it took to its end."""
    with Rig(**rig) as made:
        made.runner.set_mask_source(source)
        if jumps:
            made.engine.scheduler.output_tokens.forced = source
        submit(made.engine, 0, PROMPT, {"max_tokens": 60, "ignore_eos": True} | (controls or {}), 0)
        submit(made.engine, 1, [1, 2], {"max_tokens": 30, "ignore_eos": True}, None)
        submit(made.engine, 2, [9] * 20, {"max_tokens": 30, "ignore_eos": True}, None)
        while (0, 0) not in made.sink.finished:
            made.engine.step()
        num_steps = made.engine.stats.num_steps
        run(made.engine)
        made.engine.check_integrity()
        return made.sink.tokens[0, 0], num_steps


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("controls", [{}, {"temperature": 1.0, "seed": 3}, {"max_tokens": 17}])
def test_jumps_change_nothing_but_the_number_of_steps(seed: int, controls: dict) -> None:
    slow = answer(random_sentence(seed), jumps=False, controls=controls)
    fast = answer(random_sentence(seed), jumps=True, controls=controls)
    assert fast[0] == slow[0]
    assert fast[1] < slow[1]


@pytest.mark.parametrize("num_blocks", [18, 24])
def test_jumps_survive_preemption(num_blocks: int) -> None:
    expected = answer(random_sentence(2), jumps=False)
    assert answer(random_sentence(2), jumps=True, num_blocks=num_blocks)[0] == expected[0]


@pytest.mark.parametrize("controls", [{"logprobs": 1}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.5}])
def test_no_jump_where_every_token_counts(controls: dict) -> None:
    slow = answer(random_sentence(1), jumps=False, controls=controls)
    assert answer(random_sentence(1), jumps=True, controls=controls) == slow


def scripted(source: Sentence) -> tuple[Engine, object]:
    runner = ScriptedModelRunner(cycle_script([7], 50, EOS), 64, 4)
    runner.set_mask_source(source, VOCAB_SIZE)
    engine, sink = make_engine(runner)
    engine.scheduler.output_tokens.forced = source
    return engine, sink


def test_a_stop_token_among_them_ends_the_sequence() -> None:
    engine, sink = scripted(Sentence({3: [5, EOS, 6]}, {7}))
    submit(engine, 0, [1, 1, 1], {"max_tokens": 9}, 0)
    run(engine)
    assert sink.tokens[0, 0] == [5]
    assert sink.finished[0, 0].finish_reason == FinishReason.STOP


def test_they_stay_within_the_blocks_and_the_limit() -> None:
    engine, sink = scripted(Sentence({4: [8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}, {7}))
    submit(engine, 0, [1, 1, 1, 1], {"max_tokens": 7}, 0)
    run(engine)
    engine.check_integrity()
    assert sink.tokens[0, 0] == [8, 9, 10, 11, 12, 13, 14]
    assert sink.finished[0, 0].finish_reason == FinishReason.LENGTH


def test_a_token_that_was_not_the_forced_one_brings_none() -> None:
    source = Sentence({}, {7})
    engine, sink = scripted(source)
    source.forced = lambda *_: [9, 9, 9]  # type: ignore[method-assign]
    source.ready = lambda *_: mask_of({7}, VOCAB_SIZE)  # type: ignore[method-assign]
    submit(engine, 0, [1], {"max_tokens": 3}, 0)
    run(engine)
    assert sink.tokens[0, 0] == [7, 7, 7]


def test_a_hash_model_sees_every_token() -> None:
    """Whatever was skipped would change what a model that hashes all its tokens says next."""
    model = HashModel()
    assert answer(random_sentence(9), jumps=True, model=model)[0] == answer(random_sentence(9), jumps=False)[0]
