"""Sampling on an accelerator: the tokens that the CPU draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparkinfer.engine.cuda_draw import draw, mask_rows
from sparkinfer.engine.sampler import Sampler
from sparkinfer.engine.sampling_batch import SamplingSlots
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence
from sparkinfer.engine.token_mask import MaskBatch
from sparkinfer.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

CONTROLS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
    {"top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {3: 4.0}},
    {"temperature": 0.0, "presence_penalty": 1.0, "logprobs": 5},
]


def drawn(
    device: torch.device, logits: torch.Tensor, has_kernels: bool = False
) -> tuple[list[list[int]], list[float]]:
    num_rows, vocab_size = logits.shape
    slots, sampler = SamplingSlots(num_rows, device), Sampler(vocab_size, device, draw if has_kernels else None)
    for slot in range(num_rows):
        sampling = SamplingParams(max_tokens=9, seed=slot, **CONTROLS[slot % len(CONTROLS)])
        slots.admit(slot, Admission(sampling, [1, 2, 3], ()))
    tokens, logprobs = [], []
    for position in range(10):
        rows = [ScheduledSequence(None, slot, position, 1, None, 0, (), True) for slot in range(num_rows)]
        sampled = sampler.sample(logits.to(device), slots.build(rows))
        tokens.append(sampled.token_ids.tolist())
        logprobs += [entry.logprob for entry in sampled.logprobs if entry is not None]
    return tokens, logprobs


@pytest.mark.parametrize("has_kernels", [False, True])
def test_draws_and_logprobs_agree_with_the_cpu(has_kernels: bool):
    logits = torch.randn(24, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    tokens, logprobs = drawn(torch.device("cuda", 0), logits, has_kernels)
    expected_tokens, expected_logprobs = drawn(torch.device("cpu"), logits)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masked_rows_agree_with_the_cpu(temperature: float):
    """Every other row is masked; the free ones are as they would be without."""
    device, num_rows, vocab_size = torch.device("cuda", 0), 9, 50_000
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(3)) * 3
    words = np.random.default_rng(4).integers(-(2**31), 2**31, (5, -(-vocab_size // 32))).astype(np.int32)
    found = []
    for place, kernels in ((torch.device("cpu"), ()), (device, (draw, mask_rows))):
        slots, sampler = SamplingSlots(num_rows, place), Sampler(vocab_size, place, *kernels)
        rows = [ScheduledSequence(None, slot, 7, 1, None, 0, (), True) for slot in range(num_rows)]
        for slot in range(num_rows):
            sampling = SamplingParams(max_tokens=9, seed=slot, temperature=temperature)
            slots.admit(slot, Admission(sampling, [1], ()))
        masks = MaskBatch(torch.arange(0, num_rows, 2, device=place), torch.from_numpy(words).to(place))
        found.append(sampler.sample(logits.to(place), replace(slots.build(rows), masks=masks)).token_ids.tolist())
    assert found[0] == found[1]
