"""The scheduler's state machine with a prefix cache: shared blocks, snapshots, steps that leave garbage behind."""

from __future__ import annotations

import json
from collections import deque
from concurrent.futures import Future

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
from tests.engine.scheduler_machine import (
    LATENESS,
    LIMITS,
    MAX_MODEL_LEN,
    VOCAB_SIZES,
    SchedulerMachine,
    machine_settings,
)
from tests.engine.scheduling import GARBAGE, PagedDevice


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
        vocab_size=VOCAB_SIZES,
        lateness=LATENESS,
        swap_bytes=st.sampled_from([0, 8]),
        checkpoint_tokens=st.integers(0, 5),
        has_files=st.booleans(),
        **LIMITS,
    )
    def start(
        self, num_blocks, block_size, num_snapshots, vocab_size, lateness, swap_bytes, checkpoint_tokens, has_files,
        **limits,
    ):
        config = SchedulerConfig(admission_wait_s=1000.0, **limits)
        has_state = num_snapshots is not None
        blocks = BlockManager(num_blocks, block_size)
        prefix_config = PrefixCacheConfig(min_tokens=0, checkpoint_tokens=checkpoint_tokens)
        cache = PrefixCache(prefix_config, blocks, SnapshotPool(num_snapshots) if has_state else None)
        swap_space = SwapSpace(swap_bytes, 1, int(has_state), min_tokens=2)
        manager = CacheManager(blocks, cache, swap_space=swap_space)
        self.files = Files()
        if has_files:
            manager.disk = DiskTier(cache, self.files)
        device = FiledDevice(num_blocks, block_size, config.max_num_seqs, vocab_size, has_state, lateness)
        self.begin(Scheduler(config, manager, MAX_MODEL_LEN), device, config, swap_space)
        self.num_launches = 0

    @rule(
        prompt=st.lists(st.integers(1, 2), max_size=20),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        is_held=st.booleans(),
        priority=st.integers(0, 1),
        salt=st.sampled_from([b"", b"", b"key"]),
        uses_cache=st.sampled_from([True, True, True, False]),
        turn_starts=st.lists(st.integers(0, 20), max_size=2),
    )
    def submit(self, prompt, max_tokens, n, is_held, priority, salt, uses_cache, turn_starts):
        hints = PrefixHints(salt, uses_cache, tuple(sorted(turn_starts)))
        self.request(prompt, max_tokens, n, priority, is_held, hints=hints)

    @rule()
    def schedule_in_vain(self):
        """A step that leaves garbage wherever it writes; steps behind it run on, over whatever they find."""
        if len(self.in_flight) < 3 and self.launch():
            output, _ = self.in_flight[-1]
            self.spoil(output)
            self.in_flight[-1] = (output, None)

    def launch(self, is_undone: bool = False) -> bool:
        """Files that were asked for two launches ago are there by now."""
        while len(self.files.asked) > 2 or (self.files.asked and self.num_launches % 3 == 0):
            self.files.answer()
        self.num_launches += 1
        return super().launch(is_undone)

    @precondition(lambda self: hasattr(self, "files") and self.files.asked)
    @rule(num_damaged=st.integers(0, 2))
    def answer(self, num_damaged):
        self.files.answer(num_damaged)

    def spoil(self, output: SchedulerOutput) -> None:
        device = self.device
        for row in output.scheduled:
            table = device.tables[row.slot]
            device.write(table, row.start, [GARBAGE] * row.num_tokens)
            state = device.states[row.slot]  # no longer than row.start if the row only samples, late as its mask was
            if state is not None:
                device.states[row.slot] = state[: row.start] + [GARBAGE] * len(state[row.start :])
            device.last_token[row.slot] = GARBAGE


TestCachedMachine = CachedMachine.TestCase
TestCachedMachine.settings = machine_settings(max_examples=150, steps=50)
