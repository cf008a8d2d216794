"""Token masks from the sampler up to the engine: what is allowed, what is late, what is empty, and whom it concerns."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, cycle_script
from sparkinfer.engine.mask_gate import MaskGate
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sampling_batch import SamplingBatch, SamplingSlots
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.engine.token_mask import MaskBatch, allowed_tokens
from sparkinfer.request import FinishReason, RequestId
from sparkinfer.sampling_params import SamplingParams
from tests.engine.engines import EOS, RecordingSink, make_engine, sampling
from tests.engine.hash_model import CONTROLS, CPU, VOCAB_SIZE, HashModel, Rig, make_requests


def mask_of(allowed: set[int], vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class Grammar:
    """A MaskSource: what a row allows at a position, and how often it is asked in vain before that."""

    def __init__(
        self,
        allowed: Callable[[int, int], set[int]],
        delay: Callable[[int, int], int] = lambda *_: 0,
        vocab_size: int = VOCAB_SIZE,
    ) -> None:
        self._allowed, self._delay, self._vocab_size = allowed, delay, vocab_size
        self.num_asked: dict[tuple[int, int], int] = {}

    def ready(self, mask_row: int, position: int) -> np.ndarray | None:
        asked = self.num_asked[mask_row, position] = self.num_asked.get((mask_row, position), 0) + 1
        return None if asked <= self._delay(mask_row, position) else self._mask(mask_row, position)

    def _mask(self, mask_row: int, position: int) -> np.ndarray:
        return mask_of(self._allowed(mask_row, position), self._vocab_size)


def submit(engine: Engine, request_id: int, prompt: list[int], controls: dict, mask_row: int | None) -> None:
    mask_rows = () if mask_row is None else (mask_row,)
    engine.submit(RequestId(request_id), 0, prompt, sampling(**controls), mask_rows=mask_rows)


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def test_words_become_tokens() -> None:
    rng = random.Random(0)
    for vocab_size in (1, 31, 32, 33, 100):
        allowed = {token for token in range(vocab_size) if rng.random() < 0.4}
        words = torch.from_numpy(mask_of(allowed, vocab_size))[None]
        assert set(allowed_tokens(words, vocab_size)[0].nonzero()[:, 0].tolist()) == allowed


@pytest.mark.parametrize("controls", [*CONTROLS, {"temperature": 1.0, "top_k": 1, "seed": 1}])
def test_every_control_works_on_what_is_left(controls: dict) -> None:
    """As if the forbidden tokens were not in the vocabulary; probabilities stay those of the model."""
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(1)) * 3
    allowed = {3, 9, 17, 18, 31, 32, 33, 49}
    tokens, forbidden = [], torch.ones(50, dtype=torch.bool)
    forbidden[list(allowed)] = False
    for is_masked in (True, False):
        slots = SamplingSlots(40, CPU)
        params = SamplingParams(max_tokens=1, **{"seed": 0, "logprobs": 3} | controls)
        for slot in range(40):
            slots.admit(slot, Admission(params, [1, 2, 9], (17,)))
        rows = [ScheduledSequence(None, slot, slot, 1, None, 0, (), True) for slot in range(40)]
        batch = slots.build(rows)
        seen = logits
        if is_masked:
            words = torch.from_numpy(mask_of(allowed, 50)).expand(40, -1)
            batch = SamplingBatch(
                batch.penalties, batch.logit_bias, batch.random, batch.num_logprobs, MaskBatch(torch.arange(40), words)
            )
        else:
            seen = logits.masked_fill(forbidden, float("-inf"))
        sampled = Sampler(50, CPU).sample(seen, batch)
        assert sampled.is_finite.all()
        tokens.append(sampled.token_ids.tolist())
        if is_masked:
            expected = torch.log_softmax(logits, -1)
            for row, entry in enumerate(sampled.logprobs):
                assert entry.logprob == expected[row, tokens[0][row]].item()
                assert entry.top_logprobs == expected[row].topk(3).values.tolist()[: len(entry.top_logprobs)]
    assert set(tokens[0]) <= allowed
    assert tokens[0] == tokens[1]


def test_a_mask_hides_no_nan() -> None:
    logits = torch.zeros(3, 40)
    logits[1, 5] = float("nan")
    masks = MaskBatch(torch.arange(3), torch.from_numpy(mask_of({7, 8}, 40)).expand(3, -1))
    sampled = Sampler(40, CPU).sample(logits, SamplingBatch(masks=masks))
    assert sampled.is_finite.tolist() == [True, False, True]
    assert sampled.token_ids[[0, 2]].tolist() == [7, 7]


def test_emptiness_is_a_matter_of_the_vocabulary() -> None:
    gate = MaskGate(35)
    rows = [set(), {35, 40, 63}, {34}, {0}, {31}, {33, 63}]
    gate.source = Grammar(lambda mask_row, position: rows[mask_row], vocab_size=64)
    output = SchedulerOutput(
        [ScheduledSequence(None, slot, 0, 1, [1], 0, (), True, None, mask_row=slot) for slot in range(6)], 6
    )
    gated = gate.gate(torch.zeros(6, 35), output)
    assert (gated.empty, gated.late) == ([0, 1], [])


ALLOWED = {2, 5, 9, 11, 30, 31}
REQUESTS = [
    (prompt[:10], controls | {"max_tokens": 25, "ignore_eos": True}) for prompt, controls in make_requests(8, seed=11)
]


@pytest.fixture(scope="module")
def expected() -> list[tuple[list[int], list[object]]]:
    """Each request alone: even ones unconstrained, odd ones with forbidden tokens made as good as impossible."""
    results = []
    for number, (prompt, controls) in enumerate(REQUESTS):
        bias = dict(controls.get("logit_bias", {}))
        if number % 2:
            bias |= {token: -1e6 for token in range(VOCAB_SIZE) if token not in ALLOWED}
        with Rig(overlap=False) as rig:
            sink = rig.run([(prompt, controls | {"logit_bias": bias})])
            results.append((sink.tokens.get((0, 0), []), sink.logprobs.get((0, 0), [])))
    return results


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_blocks", [100, 22])
@pytest.mark.parametrize("most_late", [0, 1, 4])
def test_constrained_and_free_sequences_together(expected, most_late: int, num_blocks: int, overlap: bool) -> None:
    """The model checks that late rows do not advance its recurrent state; 22 blocks bring preemptions."""
    rng = random.Random(most_late)
    delays = {(row, position): rng.randrange(most_late + 1) for row in range(8) for position in range(200)}
    with Rig(num_blocks, overlap=overlap, prefill_chunk_tokens=9, max_num_batched_tokens=24) as rig:
        rig.runner.set_mask_source(Grammar(lambda *_: ALLOWED, lambda *where: delays[where]))
        for number, (prompt, controls) in enumerate(REQUESTS):
            submit(rig.engine, number, prompt, controls, number if number % 2 else None)
        run(rig.engine)
        assert (rig.scheduler.num_preemptions > 0) == (num_blocks == 22)
        for number, (tokens, logprobs) in enumerate(expected):
            assert rig.sink.tokens.get((number, 0), []) == tokens
            assert rig.sink.logprobs.get((number, 0), []) == logprobs


def test_masks_follow_positions() -> None:
    with Rig() as rig:
        grammar = Grammar(lambda mask_row, position: {position % VOCAB_SIZE, (position + mask_row) % VOCAB_SIZE})
        rig.runner.set_mask_source(grammar)
        submit(rig.engine, 0, [1, 2, 3], {"max_tokens": 20, "ignore_eos": True}, 7)
        run(rig.engine)
    for position, token in enumerate(rig.sink.tokens[0, 0], start=3):
        assert token in {position, position + 7}
    assert grammar.num_asked == {(7, position): 1 for position in range(3, 23)}


def test_a_late_row_delays_nobody_else() -> None:
    free = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    is_late = [True]
    with Rig() as rig:
        rig.runner.set_mask_source(Grammar(lambda *_: ALLOWED, lambda *_: 10**9 if is_late[0] else 0))
        submit(rig.engine, 0, [4, 5], free, None)
        submit(rig.engine, 1, [4, 5], free, 1)
        steps = 0
        while (0, 0) not in rig.sink.finished:
            rig.engine.step()
            steps += 1
        assert steps <= 12 + 3
        assert rig.engine.stats.num_late_masks > 2
        assert (1, 0) not in rig.sink.tokens
        is_late[0] = False
        run(rig.engine)
        assert len(rig.sink.tokens[1, 0]) == 12
        assert set(rig.sink.tokens[1, 0]) <= ALLOWED


def test_a_sequence_may_end_while_its_mask_is_late() -> None:
    is_late = [True]
    with Rig(max_num_seqs=1) as rig:
        rig.runner.set_mask_source(Grammar(lambda *_: ALLOWED, lambda *_: 10**9 if is_late[0] else 0))
        submit(rig.engine, 0, [4, 5], {"max_tokens": 3}, 1)
        for _ in range(4):
            rig.engine.step()
        rig.engine.abort(RequestId(0))
        is_late[0] = False
        submit(rig.engine, 1, [6], {"max_tokens": 3, "temperature": 0.0, "ignore_eos": True}, 2)
        run(rig.engine)
        assert rig.sink.finished[0, 0].finish_reason == FinishReason.ABORT
        assert len(rig.sink.tokens[1, 0]) == 3


def test_an_empty_mask_ends_its_sequence_and_no_other(expected) -> None:
    with Rig() as rig:
        rig.runner.set_mask_source(Grammar(lambda mask_row, position: {7} if position < 4 else set()))
        submit(rig.engine, 0, [1, 2], {"max_tokens": 9}, 0)
        submit(rig.engine, 1, [1, 2, 3, 4, 5], {"max_tokens": 9, "frequency_penalty": 1.0}, 1)
        prompt, controls = REQUESTS[0]
        submit(rig.engine, 2, prompt, controls, None)
        run(rig.engine)
    ends = [(sequence.status_code, sequence.code) for _, sequence in sorted(rig.sink.finished.items())]
    assert ends == [(500, "empty_mask"), (500, "empty_mask"), (0, None)]
    assert rig.sink.tokens == {(0, 0): [7, 7], (2, 0): expected[0][0]}


def test_an_empty_mask_says_nothing_against_what_was_computed() -> None:
    runner = ScriptedModelRunner(cycle_script([5, 6, 7], 6, EOS), 64, 4)
    runner.set_mask_source(Grammar(lambda mask_row, position: {5} if position < 13 else set(), vocab_size=40), 40)
    cache = make_cache(PrefixCacheConfig(min_tokens=0), num_blocks=64, block_size=4, bytes_per_snapshot=0, free=0)
    sink = RecordingSink()
    engine = Engine(Scheduler(SchedulerConfig(), cache, 1000), runner, sink)
    prompt = list(range(1, 12))
    for number, mask_row in enumerate((3, None)):
        submit(engine, number, prompt, {"max_tokens": 9}, mask_row)
        run(engine)
    assert sink.finished[0, 0].code == "empty_mask"
    assert sink.finished[1, 0].num_cached_tokens == 8


def test_nan_behind_a_mask_ends_its_sequence() -> None:
    model = HashModel()
    model.bad_token = 31
    with Rig(model=model) as rig:
        rig.runner.set_mask_source(Grammar(lambda *_: ALLOWED, lambda mask_row, position: mask_row))
        submit(rig.engine, 0, [31], {"max_tokens": 5}, 0)
        submit(rig.engine, 1, [31], {"max_tokens": 5}, 1)  # found when it is sampled late
        submit(rig.engine, 2, [1], {"max_tokens": 5, "logit_bias": {31: -1e6}, "ignore_eos": True}, 2)
        run(rig.engine)
    assert [rig.sink.finished[number, 0].code for number in range(3)] == ["nan_logits", "nan_logits", None]
    assert len(rig.sink.tokens[2, 0]) == 5
    assert rig.engine.stats.num_nan_logits == 2


@pytest.mark.parametrize("most_late", [0, 3])
def test_scripts_obey_masks(most_late: int) -> None:
    runner = ScriptedModelRunner(cycle_script([5, 6, 7], 6, EOS), 64, 4)
    allowed = {2: {5, 9}, 3: {9, 8}, 4: {7}, 5: {33}, 6: set()}
    grammar = Grammar(lambda mask_row, position: allowed.get(position, set()), lambda *_: most_late, vocab_size=40)
    runner.set_mask_source(grammar, 40)
    engine, sink = make_engine(runner)
    submit(engine, 0, [1, 1], {"max_tokens": 9, "logprobs": 1}, 3)
    submit(engine, 1, [1, 1], {"max_tokens": 9}, None)
    run(engine)
    assert sink.tokens == {(0, 0): [5, 8, 7, 33], (1, 0): [5, 6, 7, 5, 6, 7]}
    assert (sink.finished[0, 0].status_code, sink.finished[0, 0].code) == (500, "empty_mask")
    assert sink.finished[1, 0].finish_reason == FinishReason.STOP
