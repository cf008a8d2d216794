"""Streams beside a long prompt, on a simulated clock: no gap between tokens is longer than a step with one chunk."""

from __future__ import annotations

import numpy as np
import pytest

from ops.bench.sched_long_prompt import Case, longest_step_s, run
from sparkinfer.config import SchedulerConfig


@pytest.mark.parametrize("policy", ["continuous", "chunked", "priority"])
@pytest.mark.parametrize("chunk", [128, 512])
def test_a_gap_lasts_as_long_as_a_step_with_one_chunk(policy, chunk):
    case = Case("", SchedulerConfig(policy=policy, prefill_chunk_tokens=chunk), num_prompt_tokens=32_768)
    outcome = run(case, num_streams=32)
    quiet = run(Case("", case.scheduler, num_prompt_tokens=0), num_streams=32)
    assert len(outcome.during) >= 32 * (32_768 // chunk - 1)
    assert quiet.around.max() < np.quantile(outcome.during, 0.5)
    assert outcome.during.max() <= longest_step_s(case, 32)


def test_without_chunks_gaps_are_longer_than_that():
    unbounded = Case("", SchedulerConfig(prefill_chunk_tokens=0), num_prompt_tokens=32_768)
    bounded = Case("", SchedulerConfig(), num_prompt_tokens=32_768)
    assert run(unbounded, num_streams=32).during.max() > longest_step_s(bounded, 32)
