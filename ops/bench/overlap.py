"""What overlap buys: time per decode step with the host one step ahead of the device, and without.

    python ops/bench/overlap.py

The device is a clock: the scripted runner sleeps for the time that a step takes. Scheduling and bookkeeping are real.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

BLOCK_SIZE, NUM_STEPS = 16, 400


class Nobody:
    """A sink."""

    def publish(self, events: StepEvents) -> None:
        """Nobody listens."""


def step_us(num_streams: int, device_us: float, overlap: bool) -> float:
    """Median time between the ends of two decode steps."""
    num_blocks = num_streams * 64
    cache = make_cache(PrefixCacheConfig(), num_blocks=num_blocks, block_size=BLOCK_SIZE, bytes_per_snapshot=0, free=0)
    cost = StepCost(base_us=device_us, busy=True)
    runner = ScriptedModelRunner(lambda prompt: [7], num_blocks, BLOCK_SIZE, cost)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=num_streams), cache, 4096)
    engine = Engine(scheduler, runner, Nobody(), overlap)
    for number in range(num_streams):
        engine.submit(RequestId(number), 0, [number + 1, 2, 3], SamplingParams(max_tokens=NUM_STEPS + 100))
    times = []
    for _ in range(NUM_STEPS):
        engine.step()
        times.append(time.perf_counter())
    return statistics.median(b - a for a, b in itertools.pairwise(times[50:])) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 64, 256])
    parser.add_argument("--device-us", type=float, default=1500.0)
    arguments = parser.parse_args()
    print("| streams | device us/step | in turn, us/step | overlapped | hidden |\n|---|---|---|---|---|")
    for num_streams in arguments.streams:
        in_turn, overlapped = (step_us(num_streams, arguments.device_us, overlap) for overlap in (False, True))
        hidden = (in_turn - overlapped) / (in_turn - arguments.device_us)
        print(f"| {num_streams} | {arguments.device_us:.0f} | {in_turn:.0f} | {overlapped:.0f} | {hidden:.0%} |")


if __name__ == "__main__":
    main()
