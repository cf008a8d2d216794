"""Log-probabilities of a prompt's own tokens: the numbers that generating them reports, whatever happens meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from sparkinfer.engine.swap_space import SwapSpace
from sparkinfer.request import FinishReason
from sparkinfer.sampling_params import SamplingParams
from tests.engine.hash_model import VOCAB_SIZE, HashModel, Rig

GENERATE = {"temperature": 1.0, "seed": 5, "logprobs": 3, "ignore_eos": True}


def generated(prompt: list[int], num_tokens: int) -> tuple[list[int], list[object]]:
    """What a request by itself says, and its logprobs."""
    with Rig(overlap=False) as rig:
        sink = rig.run([(prompt, {**GENERATE, "max_tokens": num_tokens})])
    return sink.tokens[0, 0], sink.logprobs[0, 0]


def score(prompt: list[int], completion: list[int]) -> tuple[list[int], dict[str, object]]:
    """The request that scores `completion`."""
    return [*prompt, *completion], {"max_tokens": 0, "prompt_logprobs": 3, "prompt_logprobs_from": len(prompt)}


def cases(count: int, seed: int) -> list[tuple[list[int], list[int], list[object]]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        prompt = rng.integers(1, VOCAB_SIZE, rng.integers(1, 30)).tolist()
        found.append((prompt, *generated(prompt, int(rng.integers(1, 30)))))
    return found


CASES = cases(10, seed=1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "limits",
    [{}, {"prefill_chunk_tokens": 3}, {"num_blocks": 20}, {"num_blocks": 20, "swap": True}, {"policy": "chunked"}],
    ids=str,
)
def test_scores_are_what_generation_reports(overlap: bool, limits: dict) -> None:
    limits = dict(limits)
    if limits.pop("swap", False):
        limits["swap_space"] = SwapSpace(1 << 20, 1, 1)
    requests = []
    for prompt, completion, _ in CASES:
        requests += [(prompt, {**GENERATE, "max_tokens": 20}), score(prompt, completion)]
    with Rig(overlap=overlap, **limits) as rig:
        sink = rig.run(requests, steps_between=1)
        if "num_blocks" in limits:
            assert rig.scheduler.num_preemptions
    for number, (_, completion, logprobs) in enumerate(CASES):
        key = (2 * number + 1, 0)
        assert sink.scores[key] == list(zip(completion, logprobs, strict=True))
        assert key not in sink.tokens
        assert sink.finished[key].finish_reason == FinishReason.LENGTH
        assert 0 < sink.finished[key].ttft_ms <= sink.finished[key].generation_ms


def test_the_last_token_costs_no_forward_pass() -> None:
    with Rig() as rig:
        rig.run([score([1, 2, 3], [4, 5])])
        assert rig.engine.stats.num_computed_tokens == 4


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
def test_a_prompt_scored_before_its_answer(num_tokens: int) -> None:
    prompt, completion, logprobs = CASES[0]
    controls = {**GENERATE, "prompt_logprobs": 3}
    with Rig(prefill_chunk_tokens=4) as rig:
        sink = rig.run([([*prompt, *completion], {**controls, "max_tokens": num_tokens}), (prompt, {"max_tokens": 1})])
    scores = sink.scores[0, 0]
    assert [token_id for token_id, _ in scores] == [*prompt, *completion][1:]
    assert [entry for _, entry in scores[len(prompt) - 1 :]] == logprobs
    assert len(sink.tokens[0, 0]) == num_tokens


@pytest.mark.parametrize("controls", [{}, {"prompt_logprobs": 0}], ids=str)
def test_a_single_token_that_nothing_predicts(controls: dict) -> None:
    with Rig() as rig:
        sink = rig.run([([7], {"max_tokens": 0, **controls})])
    assert (sink.scores, sink.tokens) == ({}, {})
    assert sink.finished[0, 0].finish_reason == FinishReason.LENGTH


def test_a_prompt_as_long_as_the_context_can_be_scored_but_not_continued() -> None:
    prompt = np.random.default_rng(0).integers(1, VOCAB_SIZE, 200).tolist()
    with Rig() as rig:
        sink = rig.run([(prompt, {"max_tokens": 0, "prompt_logprobs": 1}), (prompt, {"max_tokens": 1})])
    assert len(sink.scores[0, 0]) == 199
    assert sink.finished[1, 0].code == "context_length_exceeded"


def test_aborted_while_it_is_scored() -> None:
    with Rig(policy="chunked", prefill_chunk_tokens=4) as rig:
        rig.engine.submit(1, 0, list(range(1, 30)), SamplingParams(max_tokens=0, prompt_logprobs=0))
        for _ in range(3):
            rig.engine.step()
        rig.engine.abort(1)
        rig.run([])
        assert rig.sink.finished[1, 0].finish_reason == FinishReason.ABORT
        assert 0 < len(rig.sink.scores[1, 0]) < 28


def test_not_a_number_ends_the_request_that_met_it() -> None:
    model = HashModel()
    model.bad_token = 9
    with Rig(model=model) as rig:
        sink = rig.run([score([1, 9, 3], [4, 5]), score([1, 2], [9, 5]), score([1, 2], [5, 9])])
    codes = [sink.finished[number, 0].code for number in range(3)]
    assert codes == [None, "nan_logits", None]

