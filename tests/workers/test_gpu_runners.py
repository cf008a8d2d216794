"""What the device changes in a step's limits."""

from __future__ import annotations

import pytest

from sparkinfer.config import load_config
from workers.gpu_runners import step_limits


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
    assert step_limits(config).prefill_mix_max_tokens == expected
