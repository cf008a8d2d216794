"""A needle is found at every depth of long texts, with an int8 cache as with a bf16 one."""

from __future__ import annotations

import pytest
import torch

from sparkinfer.model.registry import Model
from tests.model import needle
from tests.model.driver import Driver, load

LENGTHS = (2047, 2048, 2049, 4097)
DEPTHS = (0.0, 0.5, 1.0)
CHUNK = 1024


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("needle") / "needle.gguf"
    needle.write(path)
    return load(path)


def answers(model: Model, prompt: list[int], dtype: torch.dtype) -> torch.Tensor:
    """[len(needle) - 1, vocab_size] log-probabilities behind the prompt and behind each token that should follow."""
    driver = Driver(model, num_blocks=280, kv_dtype=dtype)
    for start in range(0, len(prompt) - 1, CHUNK):
        driver.prefill("a", prompt[start : min(start + CHUNK, len(prompt) - 1)])
    return torch.cat([driver.step({"a": [token]})["a"] for token in needle.NEEDLE[:-1]]).log_softmax(-1)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_needle(length: int, depth: float, model: Model) -> None:
    prompt = needle.text(length, depth)
    assert len(prompt) == length
    rows = {dtype: answers(model, prompt, dtype) for dtype in (torch.bfloat16, torch.int8)}
    for found in rows.values():
        assert found.argmax(-1).tolist() == needle.NEEDLE[1:]
        assert needle.least_lead(found) > needle.LEAD
    assert needle.divergence(rows[torch.bfloat16], rows[torch.int8]) < needle.MAX_DIVERGENCE


def test_without_a_needle_nothing_stands_out(model: Model) -> None:
    prompt = [token for token in needle.text(600, 0.5)[:-1] if token not in needle.NEEDLE]
    row = Driver(model, kv_dtype=torch.bfloat16).prefill("a", [*prompt, needle.NEEDLE[0]]).log_softmax(-1)
    best, second = row[0].topk(2)[0].tolist()
    assert best - second < needle.LEAD / 2
