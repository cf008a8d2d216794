"""The scheduler's state machine with a prefix cache: shared blocks, snapshots, steps that leave garbage behind."""

from __future__ import annotations

import json
from collections import deque
from concurrent.futures import Future

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from sparkinfer.config import PrefixCacheConfig, SchedulerConfig
from sparkinfer.engine.block_manager import BlockManager
from sparkinfer.engine.cache_manager import CacheManager
from sparkinfer.engine.disk_tier import DiskTier
from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.scheduler import Scheduler
from sparkinfer.engine.scheduler_output import SchedulerOutput
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.engine.snapshot_pool import SnapshotPool
from sparkinfer.engine.swap_space import SwapSpace
from tests.engine.scheduling import PagedDevice, make_sequence
from tests.engine.test_scheduler import SchedulerMachine

GARBAGE = -7  # a token that no prompt has


class Files:
    """Stands for PrefixDisk: reads are answered when the test says so, and perhaps only in part."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.asked: deque[tuple[list[str], Future[list[bytes]]]] = deque()

    def has(self, name: str) -> bool:
        return name in self.contents

    def write(self, name: str, payload: bytes) -> None:
        self.contents.setdefault(name, payload)

    def read(self, names: list[str]) -> Future[list[bytes]]:
        future: Future[list[bytes]] = Future()
        self.asked.append((names, future))
        return future

    def answer(self, num_damaged: int = 0) -> None:
        names, future = self.asked.popleft()
        future.set_result([self.contents[name] for name in names[: len(names) - num_damaged]])


class FiledDevice(PagedDevice):
    """A PagedDevice whose blocks and snapshots go to files and come back."""

    def swap_out(self, output: SchedulerOutput) -> None:
        size = self.block_size
        for block, snapshot, keep in output.disk_saves:
            if block is not None:
                keep(json.dumps(self.pool[block * size : (block + 1) * size]).encode())
            if snapshot is not None:
                keep(json.dumps(self.snapshots[snapshot]).encode())
        super().swap_out(output)
        for block, payload in output.block_loads:
            self.pool[block * size : (block + 1) * size] = json.loads(payload)

    def copy_states(self, output: SchedulerOutput) -> None:
        for slot, snapshot, restores, payload in output.state_copies:
            if payload is not None:
                self.snapshots[snapshot] = json.loads(payload)
            elif restores:
                self.states[slot] = self.snapshots[snapshot]
            else:
                self.snapshots[snapshot] = self.states[slot]


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
        has_files=st.booleans(),
    )
    def start(
        self, num_blocks, block_size, num_snapshots, max_num_seqs, vocab_size, swap_bytes, checkpoint_tokens,
        has_files, **limits,
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
        self.files = Files()
        if has_files:
            manager.disk = DiskTier(cache, self.files)
        self.scheduler = Scheduler(self.config, manager, max_model_len=30)
        self.device = FiledDevice(num_blocks, block_size, max_num_seqs, vocab_size, has_state)
        self.vocab_size = vocab_size
        self.in_flight = deque()
        self.sequences, self.emitted, self.ended = [], {}, {}
        self.aborted, self.failed, self.announced = set(), set(), set()
        self.num_requests = 0
        self.num_launches = 0

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

    def launch(self) -> bool:
        """Files that were asked for two launches ago are there by now."""
        while len(self.files.asked) > 2 or (self.files.asked and self.num_launches % 3 == 0):
            self.files.answer()
        self.num_launches += 1
        return super().launch()

    @precondition(lambda self: hasattr(self, "files") and self.files.asked)
    @rule(num_damaged=st.integers(0, 2))
    def answer(self, num_damaged):
        self.files.answer(num_damaged)

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
