"""What a CudaModelRunner is put through on the CPU and on the card alike."""

from __future__ import annotations

from collections.abc import Callable

from sparkinfer.engine.cuda_model_runner import CudaModelRunner
from sparkinfer.sampling_params import SamplingParams
from tests.engine.cuda_driver import RunnerDriver
from tests.model.tiny import golden

GREEDY = SamplingParams(max_tokens=64, temperature=0.0, seed=1)
WATCHED = SamplingParams(max_tokens=64, temperature=0.0, seed=1, logprobs=1024)
MAX_MEAN_KL = 1e-3  # integer activations


def prompt(start: int, count: int) -> list[int]:
    return (golden("qwen3")["tokens_300"].tolist() * 3)[start : start + count]


def use_slots_again(driver: RunnerDriver, num_tokens: int, check: Callable[[int], None]) -> None:
    """Three sequences one after another in the same slot and blocks, each prefilled and decoded once."""
    for turn in range(3):
        driver.add(turn, prompt(7 * turn, num_tokens - turn), WATCHED)
        driver.step({turn: num_tokens - turn})
        driver.step({turn: 0})
        check(turn)
        driver.remove(turn)


def texts_in_flight(runner: CudaModelRunner, num_slots: int, num_seqs: int, num_steps: int) -> list[object]:
    """Tokens of watched sequences and of greedy ones, whose tokens never leave the device between steps."""
    texts: list[object] = []
    for sampling in (WATCHED, GREEDY):
        driver = RunnerDriver(runner, num_slots)
        for key in range(num_seqs):
            driver.add(key, prompt(30 * key, 5 + key), sampling)
        driver.launch({key: 5 + key for key in range(num_seqs)})
        for step in range(num_steps):
            driver.launch({key: 0 for key in range(num_seqs) if key != step % num_seqs})
            driver.collect()
        driver.collect()
        texts.append(driver.tokens)
    return texts


def resume_from_snapshot(driver: RunnerDriver, num_saved: int, num_tokens: int, has_state: bool) -> None:
    """"second" takes the blocks and the state of "first" at `num_saved` tokens; three rows of first, two of second."""
    driver.add("first", prompt(0, num_tokens), WATCHED)
    driver.step({"first": num_saved})
    driver.launch({"first": num_tokens - num_saved}, (("first", 0, False),) if has_state else ())
    driver.collect()
    driver.fork("second", "first", num_saved)
    driver.launch({"second": num_tokens + 1 - num_saved, "first": 0}, (("second", 0, True),) if has_state else ())
    driver.collect()
    driver.step({"second": 0, "first": 0})
