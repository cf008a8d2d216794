"""A deterministic model's logits, bit for bit, however the same tokens are cut into steps and mixed with others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sparkinfer.api.models import model_info_from_json
from sparkinfer.api.sampling import read_sampling
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import ModelConfig, load_config
from sparkinfer.errors import ConfigError
from sparkinfer.model.determinism import make_deterministic
from sparkinfer.model.registry import Model, load_model
from tests.model.driver import CPU, Driver, mixed_and_alone, run_chunks, some_tokens
from tests.model.tiny import ARCHITECTURES, GOLDEN
from workers.service_info import service_info


@pytest.fixture(scope="module")
def deterministic_model(tiny_path: Callable[[str], Path]) -> Callable[[str], Model]:
    models: dict[str, Model] = {}

    def load(architecture: str) -> Model:
        if architecture not in models:
            gguf = GGUFFile.open(tiny_path(architecture))
            models[architecture] = load_model(gguf, HParams.from_gguf(gguf), CPU, lambda *_: None, True)
        return models[architecture]

    return load


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_do_not_matter(architecture: str, deterministic_model, tiny_model) -> None:
    model, tokens = deterministic_model(architecture), some_tokens(random.Random(1), 140)
    whole = run_chunks(model, tokens, 512)
    for seed, chunk in enumerate((1, 7, 64)):
        assert torch.equal(run_chunks(model, tokens, chunk, seed), whole)
    torch.testing.assert_close(whole, run_chunks(tiny_model(architecture), tokens, 512), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3moe", "qwen35", "qwen35moe"])
def test_the_batch_does_not_matter(architecture: str, dtype: torch.dtype, deterministic_model) -> None:
    for mixed, alone in mixed_and_alone(deterministic_model(architecture), dtype):
        assert torch.equal(mixed, alone)


def test_the_plain_model_would_not_pass(tiny_model: Callable[[str], Model]) -> None:
    tokens = some_tokens(random.Random(1), 140)
    whole, single = (run_chunks(tiny_model("llama"), tokens, chunk) for chunk in (512, 1))
    assert not torch.equal(whole, single)


def test_smollm2(embedded_model: Path) -> None:
    gguf = GGUFFile.open(embedded_model)
    model = load_model(gguf, HParams.from_gguf(gguf), CPU, lambda *_: None, True)
    tokens = some_tokens(random.Random(2), 24)
    whole = run_chunks(model, tokens, 512)
    driver = Driver(model)
    driver.step({"other": some_tokens(random.Random(3), 11)})
    parts = [driver.step({"a": tokens[:13], "other": [5]}), driver.step({"other": [6, 7], "a": tokens[13:23]}),
             driver.step({"a": tokens[23:], "other": [8]})]
    assert torch.equal(torch.cat([part["a"] for part in parts]), whole)


def test_an_accelerator_is_refused(tiny_model: Callable[[str], Model]) -> None:
    with pytest.raises(ConfigError, match=r"\[engine\] deterministic = true: on cuda this model"):
        make_deterministic(tiny_model("llama"), torch.device("cuda"))


def test_a_library_that_cannot_do_it_is_named(
    tiny_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(a, b) + 1e-6 * a.sum())
    gguf = GGUFFile.open(GOLDEN / "qwen3.gguf")
    with pytest.raises(ConfigError, match=r"deterministic = true: not possible with \d+ threads here.*threads = 1"):
        load_model(gguf, HParams.from_gguf(gguf), CPU, lambda *_: None, True)


@pytest.mark.parametrize(
    ("environment", "is_deterministic", "defaults"),
    [
        ({}, False, "generation_config"),
        ({"SPARKINFER_DETERMINISTIC": "1"}, True, "generation_config"),
        ({"SPARKINFER_SAMPLING_DEFAULTS": "greedy"}, False, "greedy"),
    ],
)
def test_configuration(environment: dict[str, str], is_deterministic: bool, defaults: str) -> None:
    config = load_config(None, environment=environment)
    assert (config.engine.deterministic, config.model.sampling_defaults) == (is_deterministic, defaults)


@pytest.mark.parametrize(("is_greedy", "temperature"), [(True, 0.0), (False, 1.0)])
def test_requests_that_say_nothing(is_greedy: bool, temperature: float) -> None:
    gguf = GGUFFile.open(GOLDEN / "qwen3.gguf")
    facts = service_info(ModelConfig(), gguf, HParams.from_gguf(gguf), 128, is_greedy)
    info = model_info_from_json(json.dumps(facts))
    assert read_sampling({}, info, None).temperature == temperature
    assert read_sampling({"temperature": 0.5}, info, None).temperature == 0.5
