"""Host time of one scheduling decision and its update, by number of running sequences, with and without prefix cache.

    python ops/bench/sched_step.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import StepResult
from sparkinfer.engine.sequence import Sequence
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

NUM_STEPS = 400
PROMPT_TOKENS = 512


def step_times_us(num_running: int, enabled: bool, has_state: bool) -> list[float]:
    """schedule + update of decode steps, every sequence one token."""
    cache = make_cache(
        PrefixCacheConfig(enabled=enabled), num_blocks=num_running * 80, block_size=16,
        bytes_per_snapshot=(8 << 20) if has_state else 0, free=64 << 30,
    )
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=8192), cache, 4096)
    sampling = SamplingParams(max_tokens=4000, seed=0)
    for number in range(num_running):
        prompt = [number + i for i in range(PROMPT_TOKENS + number % 16)]
        scheduler.add([Sequence(RequestId(number), 0, 0, prompt, sampling, frozenset([0]), 0.0)], 0.0)
    times: list[float] = []
    while len(times) < NUM_STEPS:
        started = time.perf_counter()
        output = scheduler.schedule()
        scheduler.update(output, StepResult([7] * len(output.sampling_rows)), 1.0)
        if output.num_decode_tokens == num_running:
            times.append((time.perf_counter() - started) * 1e6)
        scheduler.take_events()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, nargs="*", default=[1, 64, 256])
    arguments = parser.parse_args()
    print("running  cache      median us   p99 us")
    for num_running in arguments.running:
        for name, enabled, has_state in (("off", False, False), ("blocks", True, False), ("hybrid", True, True)):
            times = sorted(step_times_us(num_running, enabled, has_state))
            print(f"{num_running:7d}  {name:9s} {statistics.median(times):10.1f} {times[int(len(times) * 0.99)]:8.1f}")


if __name__ == "__main__":
    main()
