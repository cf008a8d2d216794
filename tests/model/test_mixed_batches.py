"""A sequence's logits do not depend on what else is in the step."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch

from sparkinfer.model.registry import Model
from tests.model.driver import Driver, run_chunks
from tests.model.tiny import ARCHITECTURES

TOLERANCE = 1e-4


def prompts(rng: random.Random, count: int) -> dict[int, list[int]]:
    return {key: [rng.randrange(1000) for _ in range(rng.randrange(1, 120))] for key in range(count)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", [1, 4])
def test_mixed_steps_equal_solo_runs(architecture: str, seed: int, tiny_model: Callable[[str], Model]) -> None:
    rng = random.Random(seed)
    model, tokens = tiny_model(architecture), prompts(rng, 6)
    driver = Driver(model, num_blocks=200, block_size=4 * seed, seed=seed)
    got: dict[int, list[torch.Tensor]] = {key: [] for key in tokens}
    done = dict.fromkeys(tokens, 0)
    while pending := [key for key in tokens if done[key] < len(tokens[key])]:
        chosen = rng.sample(pending, rng.randrange(1, len(pending) + 1))
        work = {key: tokens[key][done[key] : done[key] + rng.choice([1, 1, 1, 3, 20, 70])] for key in chosen}
        for key, logits in driver.step(work).items():
            got[key].append(logits)
            done[key] += len(logits)
    for key, expected_tokens in tokens.items():
        alone = run_chunks(model, expected_tokens, len(expected_tokens))
        torch.testing.assert_close(torch.cat(got[key]), alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_a_new_sequence_starts_from_a_clean_slot(architecture: str, tiny_model: Callable[[str], Model]) -> None:
    model = tiny_model(architecture)
    driver = Driver(model)
    driver.step({"old": [5, 6, 7, 8], "other": [1, 2, 3]})
    driver.slots["new"] = driver.slots.pop("old")
    logits = driver.step({"new": [9, 10, 11], "other": [4]})
    torch.testing.assert_close(logits["new"], run_chunks(model, [9, 10, 11], 3), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(logits["other"], run_chunks(model, [1, 2, 3, 4], 4)[-1:], rtol=0, atol=TOLERANCE)


def test_only_wanted_rows_come_back(tiny_model: Callable[[str], Model]) -> None:
    model = tiny_model("llama")
    batch = Driver(model).batch({"a": [1, 2, 3], "b": [4, 5]})
    chosen = dataclasses.replace(batch, logits_indices=torch.tensor([4, 2]))
    driver = Driver(model)
    driver.batch({"a": [1, 2, 3], "b": [4, 5]})
    with torch.inference_mode():
        everything = model.forward(batch, driver.kv_cache, driver.state_pool)
        some = model.forward(chosen, driver.kv_cache, driver.state_pool)
    torch.testing.assert_close(some, everything[[4, 2]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
def test_bf16_kv_cache_is_close(architecture: str, tiny_model: Callable[[str], Model]) -> None:
    model, tokens = tiny_model(architecture), list(range(40))
    driver = Driver(model, kv_dtype=torch.bfloat16)
    driver.step({"a": tokens[:30]})
    logits = driver.step({"a": tokens[30:]})["a"]
    exact = run_chunks(model, tokens, 40)[30:]
    assert 0 < (logits - exact).abs().max() < 0.1
