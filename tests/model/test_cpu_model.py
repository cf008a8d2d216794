"""The CPU kernels on whole models: against the float32 forward, and bit for bit against themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from kernels.cpu.dot import dot_instruction
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.checkpoint.memory_plan import CPU_TYPES
from sparkinfer.model.cpu import coverage
from sparkinfer.model.cpu.model import CpuModel
from sparkinfer.model.cpu.weights import FLOAT_KINDS, LAYOUTS_BY_NAME
from sparkinfer.model.registry import Model
from tests.model.driver import Driver, load_cpu, mixed_and_alone, run_chunks, some_tokens
from tests.model.tiny import ARCHITECTURES, golden

pytestmark = pytest.mark.skipif(dot_instruction() is None, reason="this CPU has no instruction that the kernels need")


@pytest.fixture(scope="module")
def cpu_model(tiny_path: Callable[[str], Path]) -> Callable[[str], CpuModel]:
    return cache(lambda architecture: load_cpu(tiny_path(architecture)))


def divergence(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Mean KL divergence of rows of logits, nats."""
    p, q = torch.log_softmax(expected.double(), -1), torch.log_softmax(got.double(), -1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_agrees_with_float32(architecture: str, cpu_model, tiny_model: Callable[[str], Model]) -> None:
    """16-bit activations leave a divergence of 1e-7; a hundred times that would already be a fault."""
    tokens = golden(architecture)["tokens_300"].tolist()
    expected, got = (run_chunks(model(architecture), tokens, 300) for model in (tiny_model, cpu_model))
    assert divergence(expected, got) < 1e-5
    margins = expected.topk(2).values
    is_clear = margins[:, 0] - margins[:, 1] > 0.02
    assert torch.equal(got.argmax(-1)[is_clear], expected.argmax(-1)[is_clear])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bits_do_not_depend_on_the_batch(architecture: str, dtype: torch.dtype, cpu_model) -> None:
    for mixed, alone in mixed_and_alone(cpu_model(architecture), dtype):
        assert torch.equal(mixed, alone)


def test_spans_of_keys_computed_apart_give_the_same_bits(cpu_model) -> None:
    """A decode step cuts its keys into spans; a prompt's rows pass through theirs in turn."""
    model, tokens = cpu_model("qwen3"), some_tokens(random.Random(3), 1100)
    whole = Driver(model, num_blocks=80).step({"a": tokens})["a"]
    driver = Driver(model, num_blocks=80, seed=1)
    driver.step({"a": tokens[:1090]})
    single = torch.cat([driver.step({"a": [token]})["a"] for token in tokens[1090:]])
    assert torch.equal(single, whole[1090:])


@pytest.mark.parametrize("architecture", ["llama", "qwen35moe"])
def test_threads_do_not_matter(architecture: str, cpu_model, tiny_path: Callable[[str], Path]) -> None:
    tokens, model = some_tokens(random.Random(5), 70), load_cpu(tiny_path(architecture), num_threads=3)
    for chunk in (1, 70):
        assert torch.equal(run_chunks(model, tokens, chunk), run_chunks(cpu_model(architecture), tokens, chunk))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_smaller_caches_agree_with_the_reference(dtype: torch.dtype, cpu_model, tiny_model) -> None:
    tokens = some_tokens(random.Random(9), 60)
    drivers = (Driver(model("qwen3"), kv_dtype=dtype) for model in (tiny_model, cpu_model))
    expected, got = (driver.step({"a": tokens})["a"] for driver in drivers)
    assert divergence(expected, got) < 1e-4  # a value on the edge between two stored ones may fall to either


@pytest.mark.parametrize("architecture", ["muse-glimmer", "qwen35"])
def test_head_and_hidden_states_make_the_logits(architecture: str, cpu_model) -> None:
    model, tokens = cpu_model(architecture), some_tokens(random.Random(2), 300)
    whole = Driver(model).step({"a": tokens})["a"]
    driver = Driver(model, seed=4)
    batch = driver.batch({"a": tokens})
    with torch.inference_mode():
        hidden = model.hidden_states(batch, driver.kv_cache, driver.state_pool)
        assert torch.equal(model.head(hidden), whole)
        assert torch.equal(model.head(hidden[[7, 3]]), whole[[7, 3]])


def test_the_summary_of_a_file_knows_the_types() -> None:
    assert {*LAYOUTS_BY_NAME, *(kind.upper() for kind in FLOAT_KINDS.values())} == CPU_TYPES


def test_what_is_not_covered_is_named(tiny_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hparams = HParams.from_gguf(GGUFFile.open(tiny_path("qwen35")))
    assert coverage.why_not_covered(hparams) is None
    assert coverage.why_not_covered(replace(hparams, head_dim=80)) == "head_dim 80, not a multiple of 32"
    assert coverage.why_not_covered(replace(hparams, hidden_size=40)) == "hidden_size 40, not a multiple of 32"
    assert coverage.why_not_covered(replace(hparams, ssm_conv_kernel=3)) == "1280 channels of 3 convolution taps"
    monkeypatch.setattr(coverage, "dot_instruction", lambda: None)
    assert "AVX2" in (coverage.why_not_covered(hparams) or "")
