"""What a smaller KV cache costs: KL divergence to the same model over an f32 cache, fed the same tokens.

Where the bounds come from: rounding a bf16 number is off by at most 2^-9 of itself, an int8 one by 1/254 of its row's
largest, about 2^-6 of a typical element. That is the relative error of a score or a value, so log-probabilities move
in proportion and the divergence with the square: 1e-4 nats leave bf16 a factor of ten over what these models show
(f16 has three bits more: 1/64 of that, but an expert may still change places with the next), 1e-3 (3e-3 for the 30
layers of SmolLM2) the same to int8. A wrong scale or a swapped row costs whole nats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.reference.store_kv import dequantize_kv, quantize_kv
from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import load_config
from sparkinfer.engine.kv_cache import choose_kv_dtype
from sparkinfer.errors import ConfigError
from sparkinfer.model.registry import Model
from tests.model.driver import CPU, Driver, load
from tests.model.tiny import GOLDEN

BOUNDS = {torch.float16: 1e-5, torch.bfloat16: 1e-4, torch.int8: 1e-3}
SMOLLM2_BOUNDS = {torch.float16: 1e-5, torch.bfloat16: 3e-4, torch.int8: 3e-3}
DTYPES = list(BOUNDS)


def logprobs(model: Model, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    """[len(tokens), vocab_size]: half of the tokens as one prompt, the rest in short chunks and single steps."""
    driver, half = Driver(model, kv_dtype=dtype), len(tokens) // 2
    rows, start = [driver.step({"a": tokens[:half]})["a"]], half
    while start < len(tokens):
        size = 1 if start % 3 else 5
        rows.append(driver.step({"a": tokens[start : start + size]})["a"])
        start += size
    return torch.log_softmax(torch.cat(rows).double(), dim=-1)


def divergence(model: Model, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    """[len(tokens)] nats."""
    exact, got = logprobs(model, tokens, torch.float32), logprobs(model, tokens, dtype)
    return (exact.exp() * (exact - got)).sum(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3", "qwen3moe", "qwen35", "qwen35moe"])
def test_tiny_models(architecture: str, dtype: torch.dtype, tiny_model: Callable[[str], Model]) -> None:
    tokens = torch.randint(0, 1000, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    lost = divergence(tiny_model(architecture), tokens, dtype)
    assert 0 < lost.mean() < BOUNDS[dtype]
    assert lost.max() < 20 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_smollm2(dtype: torch.dtype, embedded_model: Path) -> None:
    case = json.loads((GOLDEN / "smollm2.json").read_text())["cases"][1]
    lost = divergence(load(embedded_model), case["prompt_ids"] + case["tokens"], dtype)
    assert 0 < lost.mean() < SMOLLM2_BOUNDS[dtype]


def test_int8_rows_are_within_half_a_step() -> None:
    x = torch.randn(50, 3, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 2, 50)[:, None, None]
    q, scale = quantize_kv(x)
    assert (q.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float16, (50, 3))
    step = x.abs().amax(-1, keepdim=True) / 127
    assert ((dequantize_kv(q, scale, torch.float32) - x).abs() <= 0.57 * step).all()  # and f16's rounding of the scale


def test_int8_rows_keep_zeros_and_do_not_hide_nan() -> None:
    x = torch.zeros(4, 1, 8)
    x[1, 0, 3], x[2, 0, 3], x[3, 0, 3] = float("nan"), float("inf"), 1e-30
    back = dequantize_kv(*quantize_kv(x), torch.float32)
    assert (back[0] == 0).all()
    assert not back[1].isfinite().any()
    assert not back[2].isfinite().any()
    assert (back[3] == 0).all()


def test_the_configured_type(tmp_path: Path) -> None:
    qwen3, muse = (
        HParams.from_gguf(GGUFFile.open(GOLDEN / f"{name}.gguf")) for name in ("qwen3", "muse-glimmer")
    )
    assert choose_kv_dtype("auto", qwen3, CPU) == torch.float16
    assert choose_kv_dtype("auto", qwen3, torch.device("cuda")) == torch.bfloat16
    assert choose_kv_dtype("int8", qwen3, CPU) == torch.int8
    assert choose_kv_dtype("bf16", muse, CPU) == torch.bfloat16
    with pytest.raises(ConfigError, match=r"\[engine\] kv_dtype = 'int8'.*muse-glimmer.*allowed: auto, f32, f16, bf16"):
        choose_kv_dtype("int8", muse, CPU)
    with pytest.raises(ConfigError, match=r"\[engine\] kv_dtype = 'f16' is for CPUs; allowed here: auto, f32, bf16"):
        choose_kv_dtype("f16", qwen3, torch.device("cuda"))


@pytest.mark.parametrize(("word", "expected"), [("1", "int8"), ("0", "auto"), ("bf16", "bf16")])
def test_the_variable_of_the_other_server(word: str, expected: str) -> None:
    assert load_config(None, environment={"SPARKINFER_KV_INT8": word}).engine.kv_dtype == expected


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SPARKINFER_KV_INT8.*allowed: auto, f32, f16, bf16, int8"):
        load_config(None, environment={"SPARKINFER_KV_INT8": "yes"})
