"""What the device changes in a step's limits."""

from __future__ import annotations

import pytest

from sparkinfer.config import load_config
from workers.gpu_runners import step_limits

CHUNK_MS = {64: 14.0, 256: 18.0, 1024: 38.0, 2048: 61.0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], 128),
        (["scheduler.prefill_mix_max_tokens=64"], 64),
        (["scheduler.prefill_mix_max_tokens=0"], 128),
        (["scheduler.cpu_prefill_mix_max_tokens=0"], 2048),
        (["engine.runner=scripted"], 2048),
    ],
)
def test_prompts_beside_streams_are_short_on_a_cpu(settings: list[str], expected: int) -> None:
    config = load_config(None, ["engine.device=cpu", *settings], {})
    assert step_limits(config, {}).prefill_mix_max_tokens == expected


@pytest.mark.parametrize(("settings", "expected"), [([], 2048), (["scheduler.max_num_batched_tokens=96"], 96)])
def test_steps_are_short_on_a_cpu(settings: list[str], expected: int) -> None:
    config = load_config(None, ["engine.device=cpu", *settings], {})
    assert step_limits(config, {}).max_num_batched_tokens == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], 1024),
        (["scheduler.prefill_mix_max_ms=70"], 2048),
        (["scheduler.prefill_mix_max_ms=3"], 64),
        (["scheduler.prefill_mix_max_ms=0"], 2048),
        (["scheduler.prefill_mix_max_tokens=300"], 300),
        (["scheduler.prefill_mix_max_tokens=0"], 1024),
    ],
)
def test_prompts_beside_streams_follow_what_a_gpu_takes(settings: list[str], expected: int) -> None:
    config = load_config(None, ["engine.runner=scripted", *settings], {})
    assert step_limits(config, CHUNK_MS).prefill_mix_max_tokens == expected
