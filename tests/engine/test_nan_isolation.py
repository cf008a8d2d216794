"""Not-a-number stays where it arose: not in neighbours of the batch, not in blocks or state slots used again, not in
the prefix cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.engine.kv_cache import KVCache
from sparkinfer.engine.state_pool import StatePool
from sparkinfer.model.forward_batch import ForwardBatch
from sparkinfer.model.registry import Model, load_model
from sparkinfer.request import RequestId
from tests.engine.test_determinism import Service
from tests.model.driver import CPU, Driver
from tests.model.tiny import tiny_gguf

NAN = float("nan")
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3moe", "qwen35", "qwen35moe"])
def path(request, tmp_path_factory) -> Path:
    return tiny_gguf(request.param, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "deterministic"])
def model(request, path: Path) -> Model:
    gguf = GGUFFile.open(path)
    return load_model(gguf, HParams.from_gguf(gguf), CPU, lambda *_: None, request.param)


def poison(driver: Driver, key: object) -> None:
    """Everything that the device keeps of a sequence becomes NaN."""
    rows = [block * driver.block_size + i for block in driver.tables[key] for i in range(driver.block_size)]
    cache, states = driver.kv_cache, driver.state_pool
    pools = (cache.k, cache.v) if cache.k_scale == [None] * len(cache.k) else (cache.k_scale, cache.v_scale)
    for pool in (*pools[0], *pools[1]):
        if pool is not None:
            pool[rows] = NAN
    for pool in (*states.conv, *states.state):
        if pool is not None:
            pool[driver.slots[key]] = NAN


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_neighbours_do_not_notice(model: Model, kv_dtype: torch.dtype) -> None:
    work = {"good": list(range(5, 45)), "bad": list(range(50, 110)), "short": [3, 4]}
    steps = [{"good": [1], "bad": [2], "short": [3]}, {"short": [5, 6, 7], "bad": [8, 9, 1], "good": [4, 5, 6]},
             {"good": list(range(20)), "bad": list(range(20)), "short": [1]}]
    results = []
    for is_poisoned in (False, True):
        driver = Driver(model, kv_dtype=kv_dtype)
        driver.step(work)
        if is_poisoned:
            poison(driver, "bad")
        results.append([driver.step(step) for step in steps])
    for clean, dirty in zip(*results, strict=True):
        assert not dirty["bad"].isfinite().any()
        for key in ("good", "short"):
            torch.testing.assert_close(dirty[key], clean[key], rtol=0, atol=TOLERANCE)


def test_blocks_and_slots_can_be_used_again(model: Model) -> None:
    driver = Driver(model, num_blocks=8)
    driver.step({"old": list(range(100))})
    poison(driver, "old")
    driver.free_blocks += driver.tables.pop("old")
    driver.free_slots.append(driver.slots.pop("old"))
    tokens = list(range(200, 290))
    rows = [driver.step({"new": part})["new"] for part in (tokens[:40], tokens[40:41], tokens[41:])]
    expected = Driver(model, seed=3).step({"new": tokens})["new"]
    torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=TOLERANCE)


class FailingModel:
    """The model, but while `is_broken` a certain token leaves NaN wherever the device keeps it."""

    BAD_TOKEN = 777

    def __init__(self, model: Model) -> None:
        self.hparams = model.hparams
        self.is_broken = True
        self._model = model

    def forward(self, batch: ForwardBatch, kv_cache: KVCache, state_pool: StatePool) -> torch.Tensor:
        logits = self._model.forward(batch, kv_cache, state_pool)
        if not self.is_broken:
            return logits
        bad = batch.input_ids == self.BAD_TOKEN
        for pool in (*kv_cache.k, *kv_cache.v):
            if pool is not None:
                pool[batch.slot_mapping[bad]] = NAN
        if bad.any():
            owners = torch.repeat_interleave(torch.arange(len(batch.query_lens)), torch.tensor(batch.query_lens))
            for pool in (*state_pool.conv, *state_pool.state):
                if pool is not None:
                    pool[batch.state_slots[owners[bad]]] = NAN
        is_row_bad = (batch.input_ids == self.BAD_TOKEN)[batch.logits_indices]
        return logits.masked_fill(is_row_bad[:, None], NAN)


def test_no_prefix_is_served_that_a_failed_sequence_computed(path: Path) -> None:
    gguf = GGUFFile.open(path)
    model = load_model(gguf, HParams.from_gguf(gguf), CPU, lambda *_: None, True)
    greedy = {"temperature": 0.0, "max_tokens": 6, "logit_bias": {FailingModel.BAD_TOKEN: -1e6}}
    shared = list(range(30, 60))
    bad, good = [*shared, FailingModel.BAD_TOKEN, *range(8)], [*shared, *range(100, 110)]
    with Service(model) as healthy:
        healthy.submit(0, good, greedy)
        healthy.submit(1, bad, greedy)
        expected = healthy.finish()
    failing = FailingModel(model)
    with Service(failing, uses_cache=True, prefill_chunk_tokens=11) as service:
        service.submit(0, good, greedy, steps=1)
        service.submit(2, bad, greedy, steps=9)
        service.finish()
        assert service.codes == {0: None, 2: "nan_logits"}
        service.said.pop((2, 0), None)
        failing.is_broken = False
        service.submit(1, bad, greedy)
        service.submit(3, good, greedy)
        said = service.finish()
    assert said == {**expected, (3, 0): expected[0, 0]}
    assert service.num_cached[3] > 0


def test_a_batch_without_defects_is_untouched(model: Model) -> None:
    """The pools around a step's rows are full of NaN in these tests; this is what they protect."""
    driver = Driver(model)
    batch = driver.batch({"a": [1, 2, 3]})
    wrong = dataclasses.replace(batch, block_tables=batch.block_tables + 1)
    with torch.inference_mode():
        assert not model.forward(wrong, driver.kv_cache, driver.state_pool).isfinite().all()


def test_what_an_aborted_prompt_left_goes_with_the_first_that_fails_on_it(path: Path) -> None:
    """Chunks of a prompt are cached without a look at what they hold: nobody samples behind them."""
    gguf = GGUFFile.open(path)
    model = load_model(gguf, HParams.from_gguf(gguf), CPU, lambda *_: None, True)
    greedy = {"temperature": 0.0, "max_tokens": 6, "logit_bias": {FailingModel.BAD_TOKEN: -1e6}}
    good, prompt = list(range(30, 54)), [*range(30, 54), FailingModel.BAD_TOKEN, *range(30)]
    with Service(model) as healthy:
        healthy.submit(0, prompt, greedy)
        expected = healthy.finish()
    failing = FailingModel(model)
    with Service(failing, uses_cache=True, max_num_batched_tokens=12) as service:
        service.submit(5, good, greedy)
        service.finish()  # a prefix that is proven
        service.submit(1, prompt, greedy, steps=3)
        service.engine.abort(RequestId(1))
        service.finish()
        assert (1, 0) not in service.said
        failing.is_broken = False
        for request_id in (2, 3):
            service.submit(request_id, prompt, greedy)
            service.finish()
        assert service.codes[2] in ("nan_logits", None)  # None where nothing of it was cached
        assert service.codes[3] is None
        assert service.said[3, 0] == expected[0, 0]
        service.submit(4, [*good, 7], greedy)
        service.finish()
        assert service.num_cached[4] > 0
