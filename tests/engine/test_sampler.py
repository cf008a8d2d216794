"""Sampler against a slow oracle in float64, and its draws against the distribution they claim to follow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.engine.noise import gumbel, noise_keys
from sparkinfer.engine.sampler import Sampled, Sampler, draw
from sparkinfer.engine.sampling_batch import OPEN_CANDIDATES, SamplingSlots
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence
from sparkinfer.sampling_params import SamplingParams

CPU = torch.device("cpu")


class Rig:
    """A Sampler and its slots, driven a step at a time; row i of a step is slot i."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.slots = SamplingSlots(num_slots, CPU)
        self.sampler = Sampler(vocab_size, CPU)

    def admit(self, slot: int, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **controls) -> None:
        sampling = SamplingParams(**{"max_tokens": 9, "seed": 0, **controls})
        self.slots.admit(slot, Admission(sampling, list(prompt), output))

    def step(self, logits: torch.Tensor, slots: list[int] | None = None, position: int = 5) -> Sampled:
        slots = list(range(len(logits))) if slots is None else slots
        rows = [ScheduledSequence(None, slot, position - 1, 1, None, 0, (), True) for slot in slots]
        return self.sampler.sample(logits, self.slots.build(rows))


def sample_one(logits, prompt=(), output=(), position=5, **controls) -> Sampled:
    rig = Rig(1, len(logits))
    rig.admit(0, prompt, output, **controls)
    return rig.step(torch.tensor([logits], dtype=torch.float32), position=position)


def oracle_distribution(logits, sampling: SamplingParams, prompt=(), output=()) -> np.ndarray:
    """Probability of every token, by the definition of each control in turn."""
    x = np.asarray(logits, np.float64).copy()
    for token in set(prompt) | set(output):
        x[token] = x[token] / sampling.repetition_penalty if x[token] > 0 else x[token] * sampling.repetition_penalty
    for token in set(output):
        x[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        x[token] += bias
    if sampling.temperature == 0:
        return (np.arange(len(x)) == x.argmax()).astype(float)
    x /= sampling.temperature
    keep = np.ones(len(x), bool)
    if sampling.top_k:
        keep &= x >= np.sort(x)[::-1][: sampling.top_k][-1]
    if sampling.top_p < 1:
        p = np.where(keep, np.exp(x - x.max()), 0.0)
        p /= p.sum()
        falling = np.sort(p)[::-1]
        needed = int(np.searchsorted(np.cumsum(falling), sampling.top_p)) + 1
        keep &= p >= falling[min(needed, len(falling)) - 1]
    if sampling.min_p:
        keep &= np.exp(x - x.max()) >= sampling.min_p
    p = np.where(keep, np.exp(x - x.max()), 0.0)
    return p / p.sum()


def oracle_draw(logits, sampling: SamplingParams, position: int, prompt=(), output=()) -> int:
    p = oracle_distribution(logits, sampling, prompt, output)
    low, high = noise_keys(np.array([sampling.seed], np.uint64), np.array([position]))
    noise = gumbel(torch.tensor(low), torch.tensor(high), torch.arange(len(p), dtype=torch.int32)).double().numpy()
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + noise))


controls = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.integers(0, 12),
        "top_p": st.sampled_from([0.05, 0.3, 0.77, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.03, 0.3]),
        "presence_penalty": st.sampled_from([0.0, -1.5, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, -0.7, 0.7]),
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.6]),
        "logit_bias": st.dictionaries(st.integers(0, 11), st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=3),
        "seed": st.integers(0, 2**64 - 1),
        "logprobs": st.one_of(st.none(), st.integers(0, 20)),
    },
)
token_lists = st.lists(st.integers(0, 11), max_size=8).map(tuple)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(controls, token_lists, token_lists), min_size=1, max_size=5),
    data_seed=st.integers(0, 2**32 - 1),
    position=st.integers(0, 5000),
)
def test_every_mixture_of_controls_equals_the_oracle_row_by_row(rows, data_seed, position):
    logits = np.random.default_rng(data_seed).normal(0, 3, (len(rows), 12)).astype(np.float32)
    rig = Rig(len(rows), 12)
    for slot, (chosen, prompt, output) in enumerate(rows):
        rig.admit(slot, prompt, output, **chosen)
    sampled = rig.step(torch.from_numpy(logits), position=position)
    for row, (chosen, prompt, output) in enumerate(rows):
        sampling = SamplingParams(**{"max_tokens": 9, "seed": 0, **chosen})
        assert sampled.token_ids[row] == oracle_draw(logits[row], sampling, position, prompt, output)
        logprobs = sampled.logprobs and sampled.logprobs[row]
        assert (logprobs is None) == (sampling.logprobs is None)
        if logprobs is not None:
            exact = np.log(oracle_distribution(logits[row], SamplingParams(max_tokens=1)))
            best_first = np.argsort(-exact)[: sampling.logprobs]
            assert logprobs.top_token_ids == best_first.tolist()
            assert logprobs.top_logprobs == pytest.approx(exact[best_first], abs=2e-6)
            assert logprobs.logprob == pytest.approx(exact[sampled.token_ids[row]], abs=2e-6)


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize(
    "chosen",
    [{"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 40, "top_p": 0.9}, {"top_k": 3000, "top_p": 0.99}, {"min_p": 0.2}],
    ids=str,
)
def test_a_large_vocabulary_keeps_the_same_tokens(chosen, spread):
    """Beyond the candidates sorted at first, and for rows that need more of them beside rows that do not."""
    vocab_size = 4 * OPEN_CANDIDATES
    logits = np.random.default_rng(3).normal(0, spread, (4, vocab_size)).astype(np.float32)
    logits[1] *= 4
    rig = Rig(4, vocab_size)
    for slot in range(4):
        rig.admit(slot, seed=slot, **chosen)
    for position in range(20):
        sampled = rig.step(torch.from_numpy(logits), position=position)
        for row in range(4):
            sampling = SamplingParams(max_tokens=9, seed=row, **chosen)
            assert sampled.token_ids[row] == oracle_draw(logits[row], sampling, position)


@pytest.mark.parametrize("chosen", [{"top_k": 1}, {"top_k": 2}, {"top_p": 0.1}, {"top_k": 1, "top_p": 0.2}], ids=str)
def test_tokens_that_equal_the_cutoff_stay_together(chosen):
    logits = [1.0, 5.0, 5.0, 5.0, 0.0] + [-5.0] * 2000
    seen = {int(sample_one(logits, seed=seed, **chosen).token_ids) for seed in range(60)}
    assert seen == {1, 2, 3}


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_draws_follow_the_distribution(vary):
    """chi-square with 9 degrees of freedom: 40 has a probability of 1e-5 by chance, and the draws are fixed."""
    num_draws = 20_000
    p = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005])
    rig = Rig(1, 10)
    rig.admit(0, temperature=1.0)
    row = ScheduledSequence(None, 0, 4, 1, None, 0, (), True)
    [batch] = rig.slots.build([row]).random
    steps = np.arange(num_draws)
    fixed = np.full(num_draws, 7)
    seeds, positions = (steps, fixed) if vary == "seed" else (fixed, steps)
    keys = torch.from_numpy(noise_keys(seeds.astype(np.uint64), positions))
    logits = torch.from_numpy(np.log(p).astype(np.float32)).expand(num_draws, 10)
    many = type(batch)(batch.rows, batch.temperature, keys, None)
    counts = np.bincount(draw(logits, many).numpy(), minlength=10)
    assert chi_square(counts, p) < 40


def test_noise_is_gumbel_and_independent_between_neighbours():
    keys = noise_keys(np.arange(64, dtype=np.uint64), np.arange(64))
    low, high = torch.from_numpy(keys)[:, :, None]
    noise = gumbel(low, high, torch.arange(4096, dtype=torch.int32)).double().numpy()  # [64, 4096]
    assert noise.mean() == pytest.approx(0.57722, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.02)
    bound = 4 / math.sqrt(noise.size)
    for shifted in (noise[:, 1:], noise[1:]):
        kept = noise[:, : shifted.shape[1]][: shifted.shape[0]]
        assert abs(np.corrcoef(kept.ravel(), shifted.ravel())[0, 1]) < bound


def test_noise_reaches_both_tails_and_stays_finite():
    """16 million draws: the largest of them is about ln 16e6 = 16.6, the smallest -ln ln 16e6 = -2.8."""
    low, high = torch.from_numpy(noise_keys(np.arange(16, dtype=np.uint64), np.zeros(16)))[:, :, None]
    noise = gumbel(low, high, torch.arange(2**20, dtype=torch.int32))
    assert 14 < float(noise.max()) < 22.2
    assert -2.82 <= float(noise.min()) < -2.7


def test_a_draw_does_not_depend_on_its_neighbours_or_its_slot():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    rig = Rig(12, 50)
    for slot in range(6):
        rig.admit(slot, seed=slot)
        rig.admit(11 - slot, seed=slot, top_p=0.9)
    together = rig.step(logits).token_ids.tolist()
    rig.step(logits, slots=list(range(11, 5, -1)))
    alone = [int(rig.step(logits[row : row + 1], slots=[row]).token_ids) for row in range(6)]
    assert together == alone


def test_seeds_and_positions_give_different_draws():
    logits = [0.0] * 1000
    draws = {
        (seed, position): int(sample_one(logits, seed=seed, position=position).token_ids)
        for seed in (0, 1, 2**63, 2**64 - 1)
        for position in (1, 2, 3)
    }
    assert len(set(draws.values())) > 8
    assert draws[(1, 2)] == int(sample_one(logits, seed=1, position=2).token_ids)


def test_penalties_count_what_was_sampled_on_the_device():
    rig = Rig(2, 4)
    rig.admit(0, temperature=0.0, frequency_penalty=1.0)
    rig.admit(1, temperature=0.0)
    logits = torch.tensor([[3.5, 3.0, 0.0, 0.0]] * 2)
    drawn = [rig.step(logits).token_ids.tolist() for _ in range(4)]
    assert [row[0] for row in drawn] == [0, 1, 0, 1]
    assert [row[1] for row in drawn] == [0, 0, 0, 0]


def test_a_slot_with_penalties_starts_anew_and_rows_move_without_mixing():
    rig = Rig(3, 4)
    logits = torch.tensor([[2.0, 1.9, 0.0, 0.0]])
    for slot in range(3):
        rig.admit(slot, temperature=0.0, presence_penalty=1.0)
    assert rig.step(logits.expand(3, 4)).token_ids.tolist() == [0, 0, 0]
    rig.admit(1, temperature=0.0, presence_penalty=1.0)
    assert rig.step(logits.expand(2, 4), slots=[2, 1]).token_ids.tolist() == [1, 0]
    rig.admit(0, temperature=0.0)
    rig.admit(2, output=(0,), temperature=0.0, presence_penalty=1.0)
    assert rig.step(logits.expand(3, 4)).token_ids.tolist() == [0, 1, 1]


def test_repetition_penalty_sees_the_prompt_and_the_first_token_obeys():
    logits = [3.0, 2.0, -1.0]
    assert int(sample_one(logits, prompt=(0,), temperature=0.0, repetition_penalty=2.0).token_ids) == 1
    assert int(sample_one(logits, prompt=(0,), temperature=0.0, presence_penalty=2.0).token_ids) == 0
    assert int(sample_one(logits, temperature=0.0, logit_bias={2: 5.0}).token_ids) == 2


def test_logprobs_are_the_models_own_whatever_the_controls():
    logits = [2.0, 1.0, 0.0]
    plain = sample_one(logits, temperature=0.0, logprobs=3).logprobs[0]
    forced = sample_one(logits, temperature=0.0, logit_bias={2: 50.0}, repetition_penalty=3.0, prompt=(0,), logprobs=3)
    assert forced.token_ids.tolist() == [2]
    assert forced.logprobs[0].top_logprobs == plain.top_logprobs
    assert forced.logprobs[0].logprob == plain.top_logprobs[2]
    assert plain.logprob == plain.top_logprobs[0]


@pytest.mark.parametrize("chosen", [{"temperature": 0.0}, {"top_p": 0.5}, {"logprobs": 2}, {"min_p": 0.1, "top_k": 2}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_is_reported_and_leaves_the_others_alone(chosen, bad):
    rig = Rig(3, 8)
    for slot in range(3):
        rig.admit(slot, seed=slot, **chosen)
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    clean = rig.step(logits)
    spoilt = logits.clone()
    spoilt[1, 3] = bad
    sampled = rig.step(spoilt)
    assert sampled.is_finite.tolist() == [True, False, True]
    assert sampled.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()
    assert 0 <= int(sampled.token_ids[1]) < 8


def test_masked_logits_are_never_drawn():
    logits = torch.full((1, 6), float("-inf"))
    logits[0, 2] = -3.0
    for chosen in ({"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.5}, {"min_p": 0.1}):
        rig = Rig(1, 6)
        rig.admit(0, **chosen)
        sampled = rig.step(logits)
        assert sampled.token_ids.tolist() == [2]
        assert sampled.is_finite.tolist() == [True]


def test_the_logits_are_left_as_they_are():
    rig = Rig(1, 4)
    rig.admit(0, prompt=(1,), repetition_penalty=2.0, logit_bias={0: 1.0}, top_p=0.5)
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    rig.step(logits)
    assert logits.tolist() == [[1.0, 2.0, 3.0, 4.0]]
