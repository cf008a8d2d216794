"""The scheduler's state machine with a prefix cache: shared blocks, snapshots, steps that leave garbage behind."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.snapshot_pool import SnapshotPool
from sparkinfer.engine.swap_space import SwapSpace
from tests.engine.scheduling import PagedDevice, make_sequence
from tests.engine.test_scheduler import SchedulerMachine

GARBAGE = -7  # a token that no prompt has


class CachedMachine(SchedulerMachine):
    """As without a cache: everybody gets their solo output, and at the end every block can be had."""

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        num_snapshots=st.sampled_from([None, 0, 1, 3, 20]),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.integers(1, 12),
        prefill_chunk_tokens=st.integers(1, 6),
        vocab_size=st.sampled_from([4, 40]),
        policy=st.sampled_from(["continuous", "chunked", "priority"]),
        admission=st.sampled_from(["on_demand", "reserve"]),
        swap_bytes=st.sampled_from([0, 8]),
        checkpoint_tokens=st.integers(0, 5),
    )
    def start(
        self, num_blocks, block_size, num_snapshots, max_num_seqs, vocab_size, swap_bytes, checkpoint_tokens, **limits
    ):
        self.config = SchedulerConfig(max_num_seqs=max_num_seqs, admission_wait_s=1000.0, **limits)
        self.now = 0.0
        self.capacity = num_blocks * block_size
        has_state = num_snapshots is not None
        blocks = BlockManager(num_blocks, block_size)
        prefix_config = PrefixCacheConfig(min_tokens=0, checkpoint_tokens=checkpoint_tokens)
        cache = PrefixCache(prefix_config, blocks, SnapshotPool(num_snapshots) if has_state else None)
        self.swap_space = SwapSpace(swap_bytes, 1, int(has_state), min_tokens=2)
        manager = CacheManager(blocks, cache, swap_space=self.swap_space)
        self.scheduler = Scheduler(self.config, manager, max_model_len=30)
        self.device = PagedDevice(num_blocks, block_size, max_num_seqs, vocab_size, has_state)
        self.vocab_size = vocab_size
        self.in_flight = deque()
        self.sequences, self.emitted, self.ended = [], {}, {}
        self.aborted, self.failed, self.announced = set(), set(), set()
        self.num_requests = 0

    @rule(
        prompt=st.lists(st.integers(1, 2), max_size=20),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        priority=st.integers(0, 1),
        salt=st.sampled_from([b"", b"", b"key"]),
        uses_cache=st.sampled_from([True, True, True, False]),
        turn_starts=st.lists(st.integers(0, 20), max_size=2),
    )
    def submit(self, prompt, max_tokens, n, priority, salt, uses_cache, turn_starts):
        choices = [make_sequence(self.num_requests, prompt, max_tokens, priority, choice) for choice in range(n)]
        for sequence in choices:
            sequence.arrived_at = self.now
            sequence.hints = PrefixHints(salt, uses_cache, tuple(sorted(turn_starts)))
        self.num_requests += 1
        self.sequences += choices
        self.scheduler.add(choices, self.now)
        self.hear()

    @rule()
    def schedule_in_vain(self):
        """A step that leaves garbage wherever it writes; steps behind it run on, over whatever they find."""
        if len(self.in_flight) < 3 and self.launch():
            output, _ = self.in_flight[-1]
            self.spoil(output)
            self.in_flight[-1] = (output, None)

    def spoil(self, output: SchedulerOutput) -> None:
        device, size = self.device, self.device.block_size
        for row in output.scheduled:
            table = device.tables[row.slot]
            for position in range(row.start, row.start + row.num_tokens):
                device.pool[table[position // size] * size + position % size] = GARBAGE
            device.states[row.slot] = device.states[row.slot][: row.start] + [GARBAGE] * row.num_tokens
            device.last_token[row.slot] = GARBAGE

    @precondition(lambda self: self.in_flight)
    @rule()
    def update(self):
        output, result = self.in_flight.popleft()
        if result is None:
            self.fail_step(output)
        else:
            self.scheduler.update(output, result, 1.0)
            self.hear()

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self):
        """A step that did its work after all may fail as well."""
        output, _ = self.in_flight.popleft()
        self.fail_step(output)

    def fail_step(self, output: SchedulerOutput) -> None:
        victims = [
            *(row.sequence for row in output.scheduled),
            *self.scheduler._cache.victims_of(output),
            *self.swap_space.victims_of(output),
        ]
        self.failed.update(id(sequence) for sequence in victims if sequence not in self.ended)
        self.scheduler.fail(output, 1.0, 503, "out_of_memory", "No room.")
        self.hear()


TestCachedMachine = CachedMachine.TestCase
TestCachedMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
