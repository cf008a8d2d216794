"""Few snapshots of recurrent state and many sequences: what is kept, and what makes room."""

from __future__ import annotations

import random

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.cache_plan import MIB, make_cache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import StepResult
from sparkinfer.engine.sequence import Sequence
from sparkinfer.request import RequestId
from sparkinfer.sampling_params import SamplingParams

BLOCK_SIZE = 16


class Host:
    """A scheduler whose sequences get random tokens; `num_snapshots` of one MiB each."""

    def __init__(self, num_snapshots: int) -> None:
        self.cache = make_cache(
            PrefixCacheConfig(host_mib=num_snapshots, min_tokens=16), num_blocks=4096, block_size=BLOCK_SIZE,
            bytes_per_snapshot=MIB, free=1 << 40,
        )
        self.scheduler = Scheduler(SchedulerConfig(max_num_seqs=8), self.cache, 4096)
        self.rng = random.Random(0)
        self.num_requests = 0

    def text(self, count: int) -> list[int]:
        return [self.rng.randrange(1000, 200_000) for _ in range(count)]

    def submit(self, prompt: list[int], max_tokens: int) -> Sequence:
        self.num_requests += 1
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=1)
        sequence = Sequence(RequestId(self.num_requests), 0, 0, prompt, sampling, frozenset(), 0.0)
        self.scheduler.add([sequence], 0.0)
        return sequence

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.scheduler.update(output, StepResult(self.text(len(output.sampling_rows))), 0.0)
        self.scheduler.check_integrity()

    def finish(self, sequence: Sequence) -> None:
        while sequence.finish_reason is None:
            self.step()


def test_a_running_prompts_state_outlives_short_ones() -> None:
    """A client that rewrites the answer goes on from the prompt's end, whoever came and went meanwhile."""
    host = Host(num_snapshots=12)
    prompt = host.text(300)
    long = host.submit(prompt, 200)
    host.step()
    for _ in range(40):
        host.finish(host.submit(host.text(100), 2))
    host.finish(long)
    again = host.submit(prompt + host.text(200), 1)
    host.finish(again)
    assert again.num_cached_tokens == 288


def test_one_state_is_kept_of_a_running_answer_and_one_of_an_ended_one() -> None:
    host = Host(num_snapshots=100)
    assert host.cache.prefix_cache is not None
    snapshots = host.cache.prefix_cache.snapshots
    assert snapshots is not None
    sequences = [host.submit(host.text(20), 10 * BLOCK_SIZE) for _ in range(8)]
    for _ in range(6 * BLOCK_SIZE):
        host.step()
    assert snapshots.num_used == 16  # each prompt's and each answer's newest
    for sequence in sequences:
        host.finish(sequence)
    assert snapshots.num_used == 16
    goes_on = host.submit(sequences[0].token_ids(0, 20 + 10 * BLOCK_SIZE) + host.text(5), 1)
    host.finish(goes_on)
    assert goes_on.num_cached_tokens == 11 * BLOCK_SIZE
