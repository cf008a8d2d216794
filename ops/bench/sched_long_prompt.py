"""What running streams feel of a long prompt: the real Scheduler and Engine over simulated steps of an H200.

    python ops/bench/sched_long_prompt.py

Nothing runs on a GPU: a step costs what StepCost says, and the clock stands still but for that.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ops.bench.sched_cost import BLOCK_SIZE, BYTES_PER_BLOCK, BYTES_PER_STATE, GIB, StepCost
from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import make_cache
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput, StepResult
from sparkinfer.engine.step_events import StepEvents
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

TOKEN, LONG = 7, RequestId(1_000_000)
MAX_MODEL_LEN = 65_536
STREAM_PROMPT_TOKENS = 1000
SETTLE_STEPS = 50
SECONDS_BEFORE, SECONDS_AFTER = 2.0, 2.0


@dataclass(slots=True)
class SimulatedStep:
    runner: SimulatedRunner
    result: StepResult
    ends_at: float

    def is_done(self, timeout_s: float) -> bool:
        return True

    def wait(self) -> StepResult:
        self.runner.now = max(self.runner.now, self.ends_at)
        return self.result


class SimulatedRunner:
    """A ModelRunner whose steps take simulated time, one after the other; `now` is the only clock."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE
        self.now = 0.0
        self._ends_at = 0.0
        self._cost = StepCost()

    def launch(self, output: SchedulerOutput) -> SimulatedStep:
        self._ends_at = max(self._ends_at, self.now) + self._cost.step_s(output)
        return SimulatedStep(self, StepResult([TOKEN] * len(output.sampling_rows)), self._ends_at)

    def copy(self, output: SchedulerOutput) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Times:
    """When each request's tokens came; a sink."""

    runner: SimulatedRunner
    by_request: dict[int, list[float]] = field(default_factory=dict)

    def publish(self, events: StepEvents) -> None:
        for sequence in events.sequences:
            self.by_request.setdefault(sequence.request_id, []).append(self.runner.now)

    def gaps(self, start: float, end: float) -> np.ndarray:
        """Seconds before each token of the streams that came in (start, end]."""
        gaps = []
        for request_id, times in self.by_request.items():
            if request_id != LONG:
                at = np.array(times)
                gaps.append(np.diff(at)[(at[1:] > start) & (at[1:] <= end)])
        return np.concatenate(gaps)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    scheduler: SchedulerConfig
    num_prompt_tokens: int               # 0: no prompt arrives
    priority: int = 0                    # of the prompt; that of the streams is 0


@dataclass(frozen=True, slots=True)
class Outcome:
    ttft_s: float                        # of the long prompt
    during: np.ndarray                   # gaps of the streams while it was computed
    around: np.ndarray                   # and from SECONDS_BEFORE its arrival to SECONDS_AFTER its first token


def run(case: Case, num_streams: int) -> Outcome:
    """`num_streams` requests decode; a long prompt arrives among them."""
    runner = SimulatedRunner(num_blocks=8 * GIB // BYTES_PER_BLOCK)
    cache = make_cache(
        PrefixCacheConfig(host_mib=16_384), num_blocks=runner.num_blocks, block_size=BLOCK_SIZE, free=128 * GIB,
        bytes_per_snapshot=BYTES_PER_STATE, bytes_per_block=BYTES_PER_BLOCK,
    )
    times = Times(runner)
    engine = Engine(Scheduler(case.scheduler, cache, MAX_MODEL_LEN), runner, times, clock=lambda: runner.now)
    endless = SamplingParams(max_tokens=16_384, temperature=0.0)
    for number in range(num_streams):
        prompt = list(range(number, number + STREAM_PROMPT_TOKENS))
        engine.submit(RequestId(number), 0, prompt, endless)
    while len(times.by_request.get(num_streams - 1, ())) < SETTLE_STEPS:
        engine.step()
    _step_until(engine, runner, runner.now + SECONDS_BEFORE)
    arrived_at = done_at = runner.now
    if case.num_prompt_tokens:
        prompt = list(range(100_000, 100_000 + case.num_prompt_tokens))
        engine.submit(LONG, 0, prompt, SamplingParams(max_tokens=1), priority=case.priority)
        while LONG not in times.by_request:
            engine.step()
        [done_at] = times.by_request[LONG]
    _step_until(engine, runner, done_at + SECONDS_AFTER)
    around = times.gaps(arrived_at - SECONDS_BEFORE, done_at + SECONDS_AFTER)
    return Outcome(done_at - arrived_at, times.gaps(arrived_at, done_at), around)


def _step_until(engine: Engine, runner: SimulatedRunner, end: float) -> None:
    while runner.now < end:
        engine.step()


def longest_step_s(case: Case, num_streams: int) -> float:
    """A step with every stream, at contexts longer than any here, and one whole chunk at the prompt's end."""
    cost = StepCost()
    context = num_streams * (STREAM_PROMPT_TOKENS + 3000) + case.num_prompt_tokens
    chunk_ms = cost.prompt_ms * case.scheduler.prefill_chunk_tokens
    return (cost.base_ms + cost.decode_ms * num_streams + chunk_ms + cost.context_ms * context) * 1e-3


def cases(num_prompt_tokens: int) -> list[Case]:
    made = [Case("nothing arrives", SchedulerConfig(), 0)]
    for policy in ("continuous", "chunked", "priority"):
        made.append(Case(policy, SchedulerConfig(policy=policy), num_prompt_tokens))
    small = SchedulerConfig(policy="chunked", prefill_chunk_tokens=128)
    made.append(Case("chunked, chunks of 128", small, num_prompt_tokens))
    strict = SchedulerConfig(policy="priority")
    made.append(Case("priority, the prompt's is better", strict, num_prompt_tokens, priority=-1))
    made.append(Case("continuous, chunks unlimited", SchedulerConfig(prefill_chunk_tokens=0), num_prompt_tokens))
    return made


HEADINGS = ["policy", "prompt's TTFT s", "ITL until then: p50 ms", "p99", "max", "2 s before to 2 s after: p50", "p99"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=32_768)
    arguments = parser.parse_args()
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    for case in cases(arguments.prompt_tokens):
        outcome = run(case, arguments.streams)
        cells = ["-"] * 4
        if case.num_prompt_tokens:
            quantiles = [np.quantile(outcome.during, q) * 1e3 for q in (0.5, 0.99, 1.0)]
            cells = [f"{outcome.ttft_s:.2f}", *(f"{ms:.1f}" for ms in quantiles)]
        cells += [f"{np.quantile(outcome.around, q) * 1e3:.1f}" for q in (0.5, 0.99)]
        print(f"| {case.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
