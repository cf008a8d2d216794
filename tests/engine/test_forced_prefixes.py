"""Forced tokens and the prefix cache together: answers are what they are without either, and are found again."""

from __future__ import annotations

import random

from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.engine.test_forced_tokens import Sentence
from tests.engine.test_prefix_cache_models import BLOCK_SIZE, Service, model, random_prompt  # noqa: F401 (a fixture)


class Conversation(Service):
    """Turns under a grammar, without logprobs, which keep forced tokens from being taken together."""

    def publish(self, events: StepEvents) -> None:
        for sequence, token_id in zip(events.sequences, events.token_ids, strict=True):
            self.tokens.setdefault((sequence.request_id, sequence.choice), []).append(token_id)
        for sequence in events.finished:
            self.cached[sequence.request_id, sequence.choice] = sequence.num_cached_tokens

    def turn(self, number: int, prompt: list[int], turns: tuple[int, ...], source: Sentence) -> list[int]:
        self.engine._model_runner.set_mask_source(source)
        if self.jumps:
            self.scheduler.output_tokens.forced = source
        sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        self.engine.submit(RequestId(number), 0, prompt, sampling, hints=PrefixHints(turn_starts=turns), mask_rows=(0,))
        self.finish()
        return self.tokens[number, 0]

    jumps = False


def sentence(start: int, seed: int, vocab_size: int) -> Sentence:
    rng, forced, position = random.Random(seed), {}, start
    while position < start + 40:
        position += rng.randrange(3)
        forced[position] = [rng.randrange(1, vocab_size - 1) for _ in range(rng.randrange(1, 9))]
        position += len(forced[position])
    return Sentence(forced, set(range(1, vocab_size - 1)), vocab_size)


def talk(model, *, jumps: bool, caches: bool) -> tuple[list[list[int]], list[int], int]:  # noqa: F811
    """Answers of three turns, the cached tokens of each, the number of steps."""
    answers, history = [], random_prompt(model, 21, seed=1)
    with Conversation(model, enabled=caches) as service:
        service.jumps = jumps
        for number in range(3):
            prompt = history + random_prompt(model, 5, seed=10 + number)
            source = sentence(len(prompt), number, model.hparams.vocab_size)
            answers.append(service.turn(number, prompt, (len(history),), source))
            history = prompt + answers[-1]
        return answers, [service.cached[number, 0] for number in range(3)], service.engine.stats.num_steps


def test_a_conversation_with_forced_tokens_goes_on_from_the_cache(model):  # noqa: F811
    plain, nothing, num_steps = talk(model, jumps=False, caches=False)
    jumped, cached, fewer_steps = talk(model, jumps=True, caches=True)
    assert jumped == plain
    assert fewer_steps < num_steps
    assert not any(nothing)
    assert cached[2] > cached[1] >= 2 * BLOCK_SIZE
